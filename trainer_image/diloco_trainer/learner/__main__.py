"""`python -m diloco_trainer.learner`: see `process`."""

from diloco_trainer.signals import end_when_told

if __name__ == "__main__":
    end_when_told()
    from diloco_trainer.learner.process import end, main

    end(main())
