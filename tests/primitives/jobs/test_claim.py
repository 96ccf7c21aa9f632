from tests.primitives.jobs.driving import Jobs, done, good, reason
def test_smoke(jobs: Jobs) -> None:
    job = jobs.enqueue()
    g = jobs.take()
    assert g.id == job.id
    assert good(jobs.settle_all(done(g))[0]).state.text == "succeeded"
