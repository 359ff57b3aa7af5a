"""What drills see of a run: its processes, joined with what the Synchronizer has heard of them."""

from diloco_api.names import Role
from diloco_cli.drill_plan import ProcessSeen, Seen
from diloco_cli.run_seam import Run


def look(run: Run, steps_before: int | None) -> Seen:
    """`steps_before`: outer steps the job had taken when this run began, None while that is not known."""
    observed = run.observed
    if observed is None:
        return Seen(started=False, learners={}, synchronizer=None)
    progress = observed.progress
    heard = {
        (learner.index, learner.incarnation): learner.live and learner.step > 0
        for learner in (progress.learners if progress else [])
    }
    learners: dict[int, ProcessSeen] = {}
    for row in observed.status.learner_statuses:
        pids = run.pids(Role.LEARNER, row.index)
        if pids:
            working = observed.fresh and heard.get((row.index, row.incarnation), False)
            learners[row.index] = ProcessSeen(pids[-1], row.incarnation, working)
    serving = run.pids(Role.SYNCHRONIZER)
    return Seen(
        started=progress is not None and steps_before is not None and progress.outer_steps > steps_before,
        learners=learners,
        synchronizer=ProcessSeen(serving[-1], 0, observed.fresh) if serving else None,
    )
