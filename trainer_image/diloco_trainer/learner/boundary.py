"""What happens at a step boundary, for either kind of policy: adopt, stage, and wait where the schedule says so.

Synchronous: stage by the step schedule, adopt exactly tau steps later, wait for it then; what was held or came late
is adopted at the first boundary after its arrival. Decoupled: adopt what has arrived, stage what the next turns may
ask for. Owned by the training thread. When fragments are due: `algorithm.schedule`.
"""

from collections.abc import Callable
from functools import partial

from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.schedule import due_fragments, likely_fragments
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.core import Adoption, LearnerCore, Stage
from diloco_trainer.learner.messages import AdoptionDone, Answered, HeldBack, Staged, ToExchange, TurnSeen
from diloco_trainer.learner.rate import Rate
from diloco_trainer.learner.tape import Tape

AwaitSettlement = Callable[[Callable[[], bool]], bool]
"""Blocks until the given question is answered with yes; False when waiting has become pointless."""


class Boundary:
    """State of exchanges as the training thread knows them."""

    def __init__(
        self,
        core: LearnerCore,
        run: RunConfig,
        post: Callable[[ToExchange], None],
        rate: Rate,
        *,
        account: Account,
        tape: Tape,
    ) -> None:
        self._core = core
        self._policy = run.policy
        self._post = post
        self._rate = rate
        self._account = account
        self._tape = tape
        self._newest_turn = 0
        self._interval_seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """After a Join nothing is under way."""
        self._arrived: dict[int, Adoption] = {}
        self._wanted: set[int] = set()
        self._busy: set[int] = set()  # fragments whose stage has answered, until the adoption
        self._sent: dict[int, int] = {}  # synchronous: fragment -> job step of its stage
        self._held: set[int] = set()
        self._staged_all = False

    def receive(self, message: Adoption | TurnSeen | Answered | HeldBack) -> None:
        """Note what the exchange thread says; nothing happens to the model before the next boundary."""
        match message:
            case Adoption():
                self._arrived[message.fragment] = message
            case TurnSeen():
                if message.number > self._newest_turn:
                    self._newest_turn = message.number
                    self._interval_seconds = message.interval_seconds
                if message.needs_stage:
                    self._wanted.add(message.fragment)
            case Answered():
                self._busy.add(message.fragment)
            case HeldBack():
                self._held.add(message.fragment)

    def after_step(self, await_settlement: AwaitSettlement) -> None:
        """The boundary after an inner step."""
        self._staged_all = False
        if self._policy.synchronous:
            self._scheduled(await_settlement)
        else:
            self._adopt_arrived()
            self._stage_likely()

    def while_idle(self, *, drained: bool) -> None:
        """No step is being taken: adopt, stage what is asked for; when training is over, everything and at once."""
        if drained or not self._policy.synchronous:
            self._adopt_arrived()
        else:
            self._adopt_overdue(self._core.job_step)
        if drained and not self._staged_all:
            self._staged_all = True
            self._wanted.update(range(self._policy.num_fragments))
        self._stage(self._wanted - self._busy)

    def hand_over(self) -> None:
        """The process ends: send every fragment that has moved and is not on its way."""
        self._adopt_arrived()
        for fragment, clock in enumerate(self._core.clocks):
            if clock.c_steps > 0 and fragment not in self._busy and fragment not in self._sent:
                self._send(self._core.stage(fragment))

    # --- synchronous ----------------------------------------------------------------------------------------------

    def _scheduled(self, await_settlement: AwaitSettlement) -> None:
        step, policy = self._core.job_step, self._policy
        self._adopt_overdue(step - 1)
        for fragment in due_fragments(step, policy.sync_every, policy.num_fragments):
            if fragment not in self._sent and fragment not in self._busy:
                self._send(self._core.stage(fragment))
        for fragment in [name for name in self._sent if step == self._adopt_step(name)]:
            if await_settlement(partial(self._is_settled, fragment)) and fragment in self._arrived:
                self._adopt(self._arrived.pop(fragment))
        self._stage(self._wanted - self._busy - self._sent.keys())

    def _adopt_overdue(self, step: int) -> None:
        """Adopt what should have been adopted by the boundary of `step`."""
        for fragment in [name for name in self._arrived if self._adopt_step(name) <= step]:
            self._adopt(self._arrived.pop(fragment))

    def _is_settled(self, fragment: int) -> bool:
        """Nothing is to be waited for: the version is here, comes later, or a Join has begun everything anew."""
        return fragment in self._arrived or fragment in self._held or fragment not in self._sent

    def _adopt_step(self, fragment: int) -> int:
        """Job step at whose boundary a fragment on its way is adopted; one not sent by schedule: at once."""
        sent_at = self._sent.get(fragment)
        return 0 if sent_at is None else sent_at + self._policy.sync_delay

    def _send(self, stage: Stage) -> None:
        """Answer without being asked: the fragment's next round, or the newest turn."""
        turn = stage.base_version + 1 if self._policy.synchronous else max(1, self._newest_turn)
        if self._policy.synchronous and stage.c_steps > 0:
            self._sent[stage.fragment] = stage.job_step
        self._post(Staged(stage, turn))

    # --- Decoupled ------------------------------------------------------------------------------------------------

    def _stage_likely(self) -> None:
        likely = likely_fragments(
            self._newest_turn + 1,
            self._policy.num_fragments,
            self._account.step_seconds or 0.0,
            self._interval_seconds,
        )
        self._stage((self._wanted | set(likely)) - self._busy)

    # --- both -----------------------------------------------------------------------------------------------------

    def _stage(self, fragments: set[int]) -> None:
        for fragment in sorted(fragments):
            self._post(Staged(self._core.stage(fragment), None))
            self._wanted.discard(fragment)

    def _adopt_arrived(self) -> None:
        for adoption in list(self._arrived.values()):
            self._adopt(adoption)
        self._arrived.clear()

    def _adopt(self, adoption: Adoption) -> None:
        fragment = adoption.fragment
        how = self._core.adopt(adoption)
        self._rate.adopted(adoption.stamp, adoption.tokens_per_second)
        self._tape.write(
            "adoption",
            fragment=fragment,
            version=adoption.version,
            step=self._core.job_step,
            how=how.value,
            stage_step=adoption.stage.job_step,
        )
        self._busy.discard(fragment)
        self._held.discard(fragment)
        self._sent.pop(fragment, None)
        self._post(AdoptionDone(fragment))
        if not self._policy.synchronous:
            self._wanted.add(fragment)
