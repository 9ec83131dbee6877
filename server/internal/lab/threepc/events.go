package threepc

func (t *turn) receive(m message, votesYes bool) {
	switch m.kind {
	case prepare:
		t.vote(m.from, votesYes)
	case yes:
		t.answer(votes, m.from)
	case no:
		if t.round == votes {
			t.decide(aborted) // no site has offered to commit, if there is a register
		}
	case preCommit:
		t.learnReady(m.from)
	case acked:
		t.answer(acks, m.from)
	case commit:
		t.learn(committed, m.from)
	case abort:
		t.learn(aborted, m.from)
	case ask:
		t.tell(m.from)
	case uncertain:
		t.answer(states, m.from)
	case ready:
		t.ready = t.ready || t.round == states
		t.answer(states, m.from)
	case offerCommit:
		t.choose(committed, m.from)
	case offerAbort:
		t.choose(aborted, m.from)
	}
}

// vote answers prepare. A site that votes yes gives up the right to abort by itself.
func (t *turn) vote(asker Site, votesYes bool) {
	switch {
	case t.phase == working && votesYes:
		t.phase = prepared
		t.send(yes, only(asker))
	case t.phase == working || t.phase == aborted:
		t.phase = aborted
		t.send(no, only(asker))
	case t.phase == prepared:
		t.send(yes, only(asker))
	}
}

func (t *turn) learnReady(from Site) {
	if t.phase == prepared || t.phase == preCommitted {
		t.phase = preCommitted
		t.send(acked, only(from))
	}
}

// learn adopts a decision, and never changes one. A site that asked for it passes it on, because
// others may wait for it too.
func (t *turn) learn(p phase, from Site) {
	asked := t.round != noRound || t.protocol == TwoPhase && t.suspects != 0
	switch {
	case t.phase.decided():
	case asked:
		t.decide(p)
	default:
		t.phase = p
	}
	if t.protocol != Register || from != t.register() {
		t.send(done, only(from))
	}
}

// tell answers ask. A participant that has not voted aborts, which prevents a commit.
func (t *turn) tell(asker Site) {
	switch {
	case t.phase.decided():
		t.send(decisionOf(t.phase), only(asker))
	case t.me == Coordinator:
		// it has not decided yet
	case t.phase == working:
		t.phase = aborted
		t.send(abort, only(asker))
	case t.protocol != ThreePhase:
		// it does not know more
	case t.phase == prepared:
		t.send(uncertain, only(asker))
	case t.phase == preCommitted:
		t.send(ready, only(asker))
	}
}

// choose stores an offer at the register: the first one is the decision.
func (t *turn) choose(p phase, from Site) {
	if !t.phase.decided() {
		t.phase = p
	}
	t.send(decisionOf(t.phase), only(from))
}

// suspect handles a site that has not answered in time.
func (t *turn) suspect(of Site) {
	t.suspects |= only(of)
	switch {
	case t.phase.decided():
	case t.round == votes:
		t.decide(aborted)
	case t.round == offered:
		t.offer(t.ready)
	case t.round == acks || t.round == states:
		t.conclude()
	case t.phase == working:
		t.phase = aborted
	default:
		t.terminate()
	}
}

// terminate runs the termination protocol of a site that voted yes and suspects the coordinator.
func (t *turn) terminate() {
	switch t.protocol {
	case TwoPhase:
		t.send(ask, (t.everybody()|only(Coordinator))&^only(t.me))
	case Register:
		t.send(offerAbort, only(t.register()))
	case ThreePhase:
		leader := t.leader(t.site)
		if leader == t.me {
			t.open(states, ask)
			return
		}
		t.send(ask, only(leader)) // it may have decided without leading
	}
}

// restart keeps the durable state, and presumes abort before a vote. With a register, the
// coordinator asks the register, because it may have offered to commit.
func (t *turn) restart() {
	t.site = site{phase: t.phase}
	switch {
	case t.phase != working:
	case t.protocol == Register && t.me == Coordinator:
		t.offer(false)
	case t.protocol == Register && t.me == t.register():
		// a majority keeps its state
	default:
		t.phase = aborted
	}
}
