package observe

// WithDefaults returns h with hooks that log failures, and overdue or unscheduled
// transactions.
func (h *Coordinator) WithDefaults() *Coordinator {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, whenFailed("coordinator failed", func(e CoordinatorFailed) error { return e.Err }))
	OnNil(&r.Foreign, r.Log, warn, always[CoordinatorForeign]("transaction of a type that this process does not know"))
	OnNil(&r.Hung, r.Log, loud, always[CoordinatorHung]("calls do not return, their shard is released without them"))
	OnNil(&r.Retained, r.Log, warn, func(e CoordinatorRetained) string {
		switch {
		case e.Err != nil:
			return "retention failed"
		case e.Unscheduled > 0:
			return "unfinished transactions are missing in the due index"
		}
		return ""
	})
	OnNil(&r.Swept, r.Log, warn, func(e CoordinatorSwept) string {
		switch {
		case e.Err != nil:
			return "sweep failed"
		case e.Overdue > 0:
			return "sweep found what is overdue"
		}
		return ""
	})
	return r
}

// WithDefaults returns h with hooks that log failed calls, steps that do not succeed
// and dead letters.
func (h *Saga) WithDefaults() *Saga {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("saga step failed", func(e SagaTried) error { return e.Err }))
	OnNil(&r.Mismatched, r.Log, loud, always[SagaMismatched]("saga does not match its participants"))
	OnNil(&r.Reconciled, r.Log, warn, whenFailed("reconciliation not finished", func(e Reconciled) error { return e.Err }))
	OnNil(&r.Dead, r.Log, loud, always[SagaDead]("saga is a dead letter and waits for a person"))
	OnNil(&r.Crossed, r.Log, loud, always[SagaCrossed]("saga step was done with the input before its edit"))
	OnNil(&r.Stuck, r.Log, loud, always[SagaStuck]("saga step that must succeed keeps failing"))
	return r
}

// WithDefaults returns h with hooks that log failed calls and dead letters.
func (h *TCC) WithDefaults() *TCC {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("branch failed", func(e TCCTried) error { return e.Err }))
	OnNil(&r.Mismatched, r.Log, loud, always[TCCMismatched]("transaction does not match its participants"))
	OnNil(&r.Reconciled, r.Log, warn, whenFailed("reconciliation not finished", func(e Reconciled) error { return e.Err }))
	OnNil(&r.Dead, r.Log, loud, always[TCCDead]("transaction is a dead letter and waits for a person"))
	return r
}

// WithDefaults returns h with hooks that log failed calls, heuristic outcomes, orphans
// and participants that are blocked or cannot be scanned.
func (h *TwoPC) WithDefaults() *TwoPC {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("branch failed", func(e TwoPCTried) error { return e.Err }))
	OnNil(&r.Heuristic, r.Log, loud, always[TwoPCHeuristic]("branches finished against the decision, the transaction waits for a person"))
	OnNil(&r.Halted, r.Log, loud, always[TwoPCHalted]("transaction is halted and waits for a person"))
	OnNil(&r.Orphan, r.Log, warn, always[TwoPCOrphan]("branch in doubt without a known coordinator"))
	OnNil(&r.Scanned, r.Log, warn, func(e TwoPCScanned) string {
		switch {
		case e.Err != nil:
			return "participant not scanned"
		case e.Blocked > 0:
			return "branches blocked, their decision cannot be read"
		}
		return ""
	})
	return r
}
