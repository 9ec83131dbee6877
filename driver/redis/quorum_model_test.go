package redis

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// The model is the protocol of quorum.go in small: three nodes, two clients, time
// in integers, requests that may be late or unanswered, and nodes that forget. It
// decides by the same code as the driver, and visits every state, to find two
// clients that both believe they hold the lock.

const (
	modelTTL   = 2
	modelNodes = 3
)

// Requests on their way from a client to a node, in order; stale ones belong to an
// abandoned attempt or round, so their answers do not count.
const (
	none uint8 = iota
	acquiring
	acquiringStale
	renewing
	renewingStale
	releasingNow
)

// What a client does.
const (
	idle uint8 = iota
	asking
	holding1
	renewing1
)

// noAnswer is that of a node that has not answered; others are votes and answers.
const (
	noAnswer      uint8 = 255
	extendedYoung uint8 = 254 // answerExtended of a young node
)

// column is one node with all requests on their way to it.
type column struct {
	owner, left, up uint8 // whom it names (0: none), for how long, since when
	way             [2][2]uint8
	said            [2]uint8
}

// seat is one client.
type seat struct{ phase, age, left uint8 }

type world struct {
	nodes                  [modelNodes]column
	seats                  [2]seat
	restarts, jumps, drops uint8    // faults that may still happen
	rounds                 [2]uint8 // requests that each client may still send to all nodes
	releases               bool     // clients release abandoned attempts; otherwise they expire
}

// modelRules can be broken, to check that the model notices.
type modelRules struct {
	delay         uint8 // restart delay
	relockedCount bool  // a node that is locked again counts at once
	fromAnswer    bool  // a lease begins with the decision
	minority      bool  // the first vote decides
	youngRenew    bool  // a node counts in a renewal however young it is
}

// canonical is equal for worlds that differ only in the nodes' names.
func (w world) canonical() world {
	slices.SortFunc(w.nodes[:], func(a, b column) int { return slices.Compare(a.key(), b.key()) })
	return w
}

func (c column) key() []uint8 {
	return []uint8{c.owner, c.left, c.up, c.way[0][0], c.way[0][1], c.way[1][0], c.way[1][1], c.said[0], c.said[1]}
}

func (w world) bad() bool { return w.seats[0].left > 0 && w.seats[1].left > 0 }

// send sends a request to every node, after earlier ones; it is lost if two are on
// their way already. Answers to earlier ones do not count.
func (w *world) send(c int, request uint8) {
	w.forgetAnswers(c)
	for i := range w.nodes {
		if free := slices.Index(w.nodes[i].way[c][:], none); free >= 0 {
			w.nodes[i].way[c][free] = request
		}
	}
}

// forgetAnswers makes requests on their way stale.
func (w *world) forgetAnswers(c int) {
	for i := range w.nodes {
		n := &w.nodes[i]
		n.said[c] = noAnswer
		for j, r := range n.way[c] {
			if r == acquiring || r == renewing {
				n.way[c][j] = r + 1
			}
		}
	}
}

// deliver makes node i serve client c's first request, and answer if heard.
func (w *world) deliver(rules modelRules, c, i int, heard bool) {
	n := &w.nodes[i]
	request, me := n.way[c][0], uint8(c+1)
	n.way[c] = [2]uint8{n.way[c][1], none}
	answer := noAnswer
	// A reported uptime may be a second too long.
	voting := votes(time.Duration(n.up+1)*time.Second, time.Duration(rules.delay)*time.Second)
	switch request {
	case acquiring, acquiringStale:
		answer = uint8(voteRefused)
		if n.owner == 0 || n.owner == me {
			n.owner, n.left, answer = me, modelTTL, uint8(voting)
		}
	case renewing, renewingStale:
		switch n.owner {
		case me:
			n.left, answer = modelTTL, answerExtended
			if voting == voteYoung {
				answer = extendedYoung
			}
		case 0:
			n.owner, n.left, answer = me, modelTTL, answerRelocked
		default:
			answer = answerOther
		}
	case releasingNow:
		if n.owner == me {
			n.owner, n.left = 0, 0
		}
	}
	if heard && (request == acquiring || request == renewing) {
		n.said[c] = answer
	}
}

// decided returns what client c may conclude from the answers.
func (w *world) decided(rules modelRules, c int) (won, lost bool) {
	b, r := tally{nodes: modelNodes}, renewalTally{nodes: modelNodes}
	for _, n := range w.nodes {
		switch {
		case n.said[c] == noAnswer:
		case w.seats[c].phase == asking:
			b.count(vote(n.said[c]))
		case rules.relockedCount && n.said[c] == answerRelocked:
			r.count(answerExtended, voteGranted)
		case n.said[c] == extendedYoung && !rules.youngRenew:
			r.count(answerExtended, voteYoung)
		case n.said[c] == extendedYoung:
			r.count(answerExtended, voteGranted)
		default:
			r.count(int64(n.said[c]), voteGranted)
		}
	}
	if w.seats[c].phase == asking {
		return b.decision() == decisionWon || rules.minority && b.of[voteGranted] > 0, false
	}
	return r.verdict() == verdictKept, r.verdict() == verdictLost
}

// next lists the worlds that may follow.
func (w world) next(rules modelRules) []world {
	var all []world
	add := func(change func(*world)) {
		after := w
		change(&after)
		all = append(all, after.canonical())
	}
	add(func(w *world) { w.tick(rules) })
	for i := range w.nodes {
		if w.restarts > 0 {
			add(func(w *world) { n := &w.nodes[i]; n.owner, n.left, n.up = 0, 0, 0; w.restarts-- })
		}
		if w.jumps > 0 && w.nodes[i].owner > 0 {
			add(func(w *world) { n := &w.nodes[i]; n.owner, n.left = 0, 0; w.jumps-- })
		}
		for c := range w.seats {
			if w.nodes[i].way[c][0] == none {
				continue
			}
			add(func(w *world) { w.deliver(rules, c, i, true) })
			if w.drops > 0 {
				add(func(w *world) { w.drops--; w.deliver(rules, c, i, false) })
			}
		}
	}
	for c := range w.seats {
		w.moves(rules, c, add)
	}
	return all
}

// moves adds what client c may do.
func (w world) moves(rules modelRules, c int, add func(func(*world))) {
	leave := func(w *world) {
		w.forgetAnswers(c)
		if w.releases {
			w.send(c, releasingNow)
		}
		w.seats[c] = seat{}
	}
	s := w.seats[c]
	won, lost := w.decided(rules, c)
	kept := uint8(modelTTL)
	if !rules.fromAnswer {
		kept = modelTTL - min(s.age, modelTTL)
	}
	switch {
	case s.phase == idle:
		if w.rounds[c] > 0 {
			add(func(w *world) { w.rounds[c]--; w.send(c, acquiring); w.seats[c] = seat{phase: asking} })
		}
		return
	case s.phase == asking && won && kept > 0:
		add(func(w *world) { w.forgetAnswers(c); w.seats[c] = seat{phase: holding1, left: kept} })
	case s.phase == holding1 && w.rounds[c] > 0:
		add(func(w *world) { w.rounds[c]--; w.send(c, renewing); w.seats[c].phase, w.seats[c].age = renewing1, 0 })
	case s.phase == renewing1 && lost:
		add(leave)
		return
	case s.phase == renewing1 && won && s.left > 0:
		add(func(w *world) { w.forgetAnswers(c); w.seats[c] = seat{phase: holding1, left: max(s.left, kept)} })
	case s.phase == renewing1:
		add(func(w *world) { w.forgetAnswers(c); w.seats[c].phase = holding1 })
	}
	add(leave)
}

// tick advances time by one unit.
func (w *world) tick(rules modelRules) {
	for i := range w.nodes {
		n := &w.nodes[i]
		n.up = min(n.up+1, rules.delay)
		if n.left > 0 {
			if n.left--; n.left == 0 {
				n.owner = 0
			}
		}
	}
	for c := range w.seats {
		s := &w.seats[c]
		s.age = min(s.age+1, modelTTL)
		if s.left > 0 {
			if s.left--; s.left == 0 {
				w.forgetAnswers(c)
				*s = seat{}
			}
		}
	}
}

// explore visits every reachable world, and returns a bad one if there is one.
func explore(t *testing.T, rules modelRules, start world) (bad *world) {
	t.Helper()
	for i := range start.nodes {
		start.nodes[i].up, start.nodes[i].said = rules.delay, [2]uint8{noAnswer, noAnswer}
	}
	seen, queue := map[world]struct{}{start: {}}, []world{start}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for _, after := range w.next(rules) {
			if _, known := seen[after]; known {
				continue
			}
			if after.bad() {
				t.Logf("%d worlds until two hold it", len(seen))
				return &after
			}
			seen[after] = struct{}{}
			queue = append(queue, after)
		}
	}
	t.Logf("%d worlds", len(seen))
	return nil
}

func TestModelNeverHasTwoHolders(t *testing.T) {
	t.Parallel()
	for _, faults := range []world{
		{restarts: 1, rounds: [2]uint8{2, 1}},
		{restarts: 1, rounds: [2]uint8{1, 1}, releases: true},
	} {
		t.Run(fmt.Sprintf("%d restarts, rounds %v, releases %v", faults.restarts, faults.rounds, faults.releases), func(t *testing.T) {
			single(t, faults)
			if bad := explore(t, modelRules{delay: modelTTL}, faults); bad != nil {
				t.Errorf("two hold it: %+v", *bad)
			}
		})
	}
}

// single leaves the large worlds to runs without the race detector, which slows
// them down tenfold and finds nothing in one goroutine.
func single(t *testing.T, start world) {
	t.Helper()
	if testbed.Brief() && (start.rounds[0] > 1 || start.releases) {
		t.Skip("one goroutine: not with the race detector")
	}
}

// Each broken rule, and each broken assumption about nodes, gives two holders.
func TestModelFindsBrokenRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules modelRules
		start world
	}{
		"a restarted node votes at once":   {modelRules{}, world{restarts: 1, rounds: [2]uint8{1, 1}}},
		"a restarted node votes too early": {modelRules{delay: modelTTL - 1}, world{restarts: 1, rounds: [2]uint8{1, 1}}},
		"a node's clock jumps":             {modelRules{delay: modelTTL}, world{jumps: 1, rounds: [2]uint8{1, 1}}},
		"a lease begins with the decision": {modelRules{delay: modelTTL, fromAnswer: true}, world{rounds: [2]uint8{1, 1}}},
		"a young node counts in a renewal": {modelRules{delay: modelTTL, youngRenew: true}, world{restarts: 1, rounds: [2]uint8{2, 1}}},
		"one vote is enough":               {modelRules{delay: modelTTL, minority: true}, world{rounds: [2]uint8{1, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			single(t, c.start)
			if explore(t, c.rules, c.start) == nil {
				t.Error("the model does not find two holders")
			}
		})
	}
}
