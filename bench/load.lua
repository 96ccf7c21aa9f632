-- The load that wrk sends. One thread, any number of connections; what to do next is decided for the whole thread,
-- because wrk does not say which connection asks. Arguments after `--` are key=value:
--   mode     enqueue | work (claim, settle) | life (enqueue, claim, settle) | worker (claim with the last settlement)
--   queue    name of the queue          batch    jobs per request
--   warm     seconds before counting    measure  seconds that count
-- After that the connections only ask /livez, so that no request is cut off and every count can be held against the database.

local ffi = require("ffi")
ffi.cdef [[ typedef struct { long s; long ns; } bench_time; int clock_gettime(int, bench_time *); ]]
local stamp = ffi.new("bench_time")

local function now()
  ffi.C.clock_gettime(1, stamp)
  return tonumber(stamp.s) + tonumber(stamp.ns) * 1e-9
end

local find, sub, match, concat = string.find, string.sub, string.match, table.concat
local options, probed, started, ended = {}, false, nil, nil
local held, stock = {}, 0 -- claimed and not settled; enqueued and not asked for
local ENQUEUE, CLAIM, CLAIM_PLAIN, IDLE

-- read by done()
sent, got = 0, 0
acked, claimed, settled, empty, refused = 0, 0, 0, 0, 0
window_acked, window_settled, window_requests = 0, 0, 0
first_refusal = ""

local function post(path, body)
  return wrk.format("POST", path, nil, body)
end

function init(args)
  for _, pair in ipairs(args) do
    local key, value = match(pair, "^(%w+)=(.*)$")
    options[key] = tonumber(value) or value
  end
  wrk.headers["Content-Type"] = "application/json"
  local job = '{"queue":"' .. options.queue .. '","type":"bench.work","payload":'
    .. '{"order":98127364,"customer":"c-5521","lines":[{"sku":"A-77","count":2},{"sku":"B-12","count":1}]}}'
  if options.batch == 1 then
    ENQUEUE = post("/v1/jobs", job)
  else
    local jobs = {}
    for index = 1, options.batch do jobs[index] = job end
    ENQUEUE = post("/v1/jobs/batch", '{"jobs":[' .. concat(jobs, ",") .. "]}")
  end
  CLAIM = '{"queues":["' .. options.queue .. '"],"worker":"bench","lease_seconds":3600,"limit":' .. options.batch
  CLAIM_PLAIN = post("/v1/jobs/claim", CLAIM .. "}")
  IDLE = wrk.format("GET", "/livez")
end

local function settlement(jobs)
  local items = {}
  for index, job in ipairs(jobs) do
    items[index] = '{"id":"' .. job.id .. '","token":"' .. job.token .. '","outcome":"succeeded"}'
  end
  return "[" .. concat(items, ",") .. "]"
end

local function settle(jobs)
  if options.batch == 1 then
    return post("/v1/jobs/" .. jobs[1].id .. "/complete", '{"token":"' .. jobs[1].token .. '"}')
  end
  return post("/v1/jobs/settlements", '{"items":' .. settlement(jobs) .. "}")
end

local function next_request()
  local mode = options.mode
  if mode == "enqueue" then return ENQUEUE end
  local jobs = table.remove(held)
  if mode == "worker" then
    return jobs and post("/v1/jobs/claim", CLAIM .. ',"settlements":' .. settlement(jobs) .. "}") or CLAIM_PLAIN
  end
  if jobs then return settle(jobs) end
  if mode == "work" then return CLAIM_PLAIN end
  if stock > 0 then
    stock = stock - 1
    return CLAIM_PLAIN
  end
  return ENQUEUE
end

function request()
  if not probed then -- wrk's own look at the script, which is not sent
    probed = true
    return IDLE
  end
  local at = now()
  if not started then
    started = at + options.warm
    ended = started + options.measure
  end
  if at >= ended then return IDLE end
  sent = sent + 1
  return next_request()
end

local function take_jobs(body, stop)
  local jobs, place = {}, 1
  while true do
    local _, id_end = find(body, '"id":"', place, true)
    if not id_end or id_end > stop then break end
    local _, token_end = find(body, '"token":"', id_end, true)
    local close = find(body, '"', token_end + 1, true)
    jobs[#jobs + 1] = { id = sub(body, id_end + 1, id_end + 36), token = sub(body, token_end + 1, close - 1) }
    place = close
  end
  if #jobs == 0 then
    empty = empty + 1
    if options.mode == "life" then stock = stock + 1 end
  else
    claimed = claimed + #jobs
    held[#held + 1] = jobs
    if options.mode == "life" and #jobs < options.batch then stock = stock + 1 end
  end
end

local function count_of(body, text, place)
  local count = 0
  while true do
    local _, stop = find(body, text, place, true)
    if not stop then return count end
    count, place = count + 1, stop
  end
end

function response(status, _, body)
  if find(body, '"checks":', 1, true) then return end
  got = got + 1
  local at = now()
  local inside = at >= started and at < ended
  if inside then window_requests = window_requests + 1 end
  if status >= 300 then
    refused = refused + 1
    if first_refusal == "" then first_refusal = status .. " " .. sub(body, 1, 300) end
    return
  end
  if sub(body, 1, 8) == '{"jobs":' then
    local tail = find(body, '"settled":', 1, true) or #body
    take_jobs(body, tail)
    local done = count_of(body, '"state":"succeeded"', tail)
    settled = settled + done
    if inside then window_settled = window_settled + done end
    return
  end
  local done = count_of(body, '"state":"succeeded"', 1)
  if done > 0 then
    settled = settled + done
    if inside then window_settled = window_settled + done end
    return
  end
  local made = count_of(body, '"available_at":', 1)
  acked = acked + made
  stock = stock + 1
  if inside then window_acked = window_acked + made end
end

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function done(summary, latency, _)
  local thread = threads[1]
  local fields = {}
  for _, name in ipairs({
    "sent", "got", "acked", "claimed", "settled", "empty", "refused", "window_acked", "window_settled", "window_requests",
  }) do
    fields[#fields + 1] = '"' .. name .. '":' .. string.format("%d", thread:get(name))
  end
  local errors = summary.errors
  fields[#fields + 1] = '"socket_errors":' .. (errors.connect + errors.read + errors.write + errors.timeout)
  fields[#fields + 1] = '"p50_ms":' .. latency:percentile(50) / 1000
  fields[#fields + 1] = '"p99_ms":' .. latency:percentile(99) / 1000
  fields[#fields + 1] = '"first_refusal":' .. string.format("%q", thread:get("first_refusal"))
  io.write("BENCH {" .. concat(fields, ",") .. "}\n")
end
