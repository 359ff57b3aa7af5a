"""A Synchronizer without tensors: serves `Admin` and counts the beats of stub Learners. One beat is one merged token.

Run as `python -m diloco_trainer.synchronizer` from the folder `stub_trainer.write_stub_trainer` makes. `data.uri`
steers it: `stub:synchronizer-exit=65` ends at once with that code, `stub:learner-exit=1` is for the Learners.
"""

import http.server
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from diloco_api import names
from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.run_config import read_run_config
from diloco_api.tokens import TokenError, read_admin_token, read_token

CONFIG = read_run_config(Path(os.environ[names.ENV_CONFIG_DIR]) / names.FILE_RUN_CONFIG)
KEY = (Path(os.environ[names.ENV_CREDENTIALS_DIR]) / names.FILE_KEY).read_bytes()
STATE = Path(os.environ[names.ENV_STATE_DIR]) / "state.json"


class Job:
    """Beats so far; kept in the state folder."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.draining = False
        self.beats = json.loads(STATE.read_text())["beats"] if STATE.exists() else 0
        self.learners: dict[tuple[int, int], list[float]] = {}

    @property
    def phase(self) -> Phase:
        if self.beats >= CONFIG.budget_tokens:
            return Phase.COMPLETE
        return Phase.STOPPED if self.draining else Phase.RUNNING

    def beat(self, index: int, incarnation: int) -> Phase:
        with self.lock:
            row = self.learners.setdefault((index, incarnation), [0, 0.0])
            row[0], row[1] = row[0] + 1, time.monotonic()
            if self.phase is Phase.RUNNING:
                self.beats += 1
                STATE.write_text(json.dumps({"beats": self.beats}))
            if self.phase is Phase.COMPLETE:
                (STATE.parent / names.FILE_OUTER).write_bytes(b"final")
            return self.phase

    def progress(self) -> Progress:
        with self.lock:
            now = time.monotonic()
            rows = [
                LearnerProgress(
                    index=index, incarnation=incarnation, site="local", live=now - heard < 1.0,
                    state=LearnerState.TRAINING,
                    heartbeat_age_seconds=now - heard, step=int(beats), token_clock=int(beats), step_seconds=0.05,
                    state_seconds={LearnerState.TRAINING: beats * 0.05},
                )
                for (index, incarnation), (beats, heard) in self.learners.items()
            ]  # fmt: skip
            complete = self.phase is Phase.COMPLETE
            return Progress(
                job_uid=CONFIG.job_uid, epoch=0, phase=self.phase, reason="TokenBudgetReached" if complete else None,
                served_seconds=now - self.began, uptime_seconds=now - self.began, budget_tokens=CONFIG.budget_tokens,
                percent=100 * self.beats / CONFIG.budget_tokens, outer_steps=self.beats, outer_rounds=self.beats,
                last_merge_age_seconds=0.0 if self.beats else None, loss_final=1.0 if complete else None,
                tokens=TokenTotals(trained=self.beats, merged=self.beats), learners=rows,
            )  # fmt: skip


JOB = Job()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, body: str = "") -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def do_GET(self) -> None:
        try:
            read_admin_token(KEY, self.token)
        except TokenError as error:
            return self.answer(401, str(error))
        return self.answer(200, JOB.progress().model_dump_json())

    def do_POST(self) -> None:
        if self.path == "/drain":
            read_admin_token(KEY, self.token)
            JOB.draining = True
            return self.answer(202)
        identity = read_token(KEY, self.token)
        return self.answer(200, JOB.beat(identity.index, identity.incarnation).value)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    uri = CONFIG.train.data.uri
    if uri.startswith("stub:synchronizer-exit="):
        print("error: spec.train.data.uri: no such text", file=sys.stderr)
        sys.exit(int(uri.partition("=")[2]))
    for port in (CONFIG.synchronizer_port, CONFIG.admin_port):
        try:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError:
            print(f"error: spec.synchronizer.port: {port}: is in use", file=sys.stderr)
            sys.exit(66)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
