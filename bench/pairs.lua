-- The load of the small primitives. One thread, any number of connections. Arguments after `--` are key=value:
--   mode     lock (acquire, release) | idempotency (check, complete) | get (always the same path)
--   path     what to get                warm     seconds before counting     measure  seconds that count
-- Each pair has a name of its own, sent and given back as the request's id, so that an answer is known by it.

local ffi = require("ffi")
ffi.cdef [[ typedef struct { long s; long ns; } bench_time; int clock_gettime(int, bench_time *); ]]
local stamp = ffi.new("bench_time")

local function now()
  ffi.C.clock_gettime(1, stamp)
  return tonumber(stamp.s) + tonumber(stamp.ns) * 1e-9
end

local find, sub, match = string.find, string.sub, string.match
local options, probed, started, ended, serial = {}, false, nil, nil, 0
local held = {} -- begun and not ended
local GET, IDLE

-- read by done()
sent, got, ended_pairs, refused, window, all = 0, 0, 0, 0, 0, 0
first_refusal = ""

function init(args)
  for _, pair in ipairs(args) do
    local key, value = match(pair, "^(%w+)=(.*)$")
    options[key] = tonumber(value) or value
  end
  wrk.headers["Content-Type"] = "application/json"
  GET = wrk.format("GET", options.path or "/livez")
  IDLE = wrk.format("GET", options.idle)
end

local function post(path, name, body)
  return wrk.format("POST", path, { ["Content-Type"] = "application/json", ["X-Request-Id"] = name }, body)
end

local function begin()
  serial = serial + 1
  local name = "pair-" .. serial
  if options.mode == "lock" then
    return post("/v1/locks/acquire", name, '{"name":"' .. name .. '","owner":"bench","ttl_seconds":600}')
  end
  return post("/v1/idempotency/check", name, '{"scope":"bench","key":"' .. name .. '","fingerprint":"bench"}')
end

local function finish(one)
  local token = '","token":"' .. one.token .. '"'
  if options.mode == "lock" then
    return post("/v1/locks/release", one.name, '{"name":"' .. one.name .. token .. "}")
  end
  return post(
    "/v1/idempotency/complete", one.name,
    '{"scope":"bench","key":"' .. one.name .. token .. ',"result":{"order":98127364}}'
  )
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
  if options.mode == "get" then return GET end
  local one = table.remove(held)
  return one and finish(one) or begin()
end

function response(status, headers, body)
  local at = now()
  if at >= ended and find(body, '"checks":', 1, true) then return end
  got = got + 1
  if status >= 300 then
    refused = refused + 1
    if first_refusal == "" then first_refusal = status .. " " .. sub(body, 1, 300) end
    return
  end
  if options.mode ~= "get" then
    local token = match(body, '"token":"([^"]+)"')
    if token then
      held[#held + 1] = { name = headers["X-Request-Id"] or headers["x-request-id"], token = token }
      return
    end
  end
  all = all + 1
  if at >= started and at < ended then window = window + 1 end
end

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function done(summary, latency, _)
  local thread = threads[1]
  local fields = {}
  for _, name in ipairs({ "sent", "got", "all", "refused", "window" }) do
    fields[#fields + 1] = '"' .. name .. '":' .. string.format("%d", thread:get(name))
  end
  local errors = summary.errors
  fields[#fields + 1] = '"socket_errors":' .. (errors.connect + errors.read + errors.write + errors.timeout)
  fields[#fields + 1] = '"p50_ms":' .. latency:percentile(50) / 1000
  fields[#fields + 1] = '"p99_ms":' .. latency:percentile(99) / 1000
  fields[#fields + 1] = '"first_refusal":' .. string.format("%q", thread:get("first_refusal"))
  io.write("BENCH {" .. table.concat(fields, ",") .. "}\n")
end
