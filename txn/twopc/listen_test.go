package twopc

import (
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/observe"
)

// told is what a hook received.
type told struct {
	what       string
	age, since time.Duration
	blocked    int
}

// ear is what all hooks received.
type ear struct {
	mu   sync.Mutex
	told []told
}

func (e *ear) hear(what ...string) { e.note(told{what: strings.Join(what, " ")}) }

func (e *ear) note(x told) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, x)
}

func (e *ear) count(what string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, x := range e.told {
		if strings.HasPrefix(x.what, what) {
			n++
		}
	}
	return n
}

func (e *ear) last(what string) (found told) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.told {
		if strings.HasPrefix(x.what, what) {
			found = x
		}
	}
	return found
}

func (e *ear) all() (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.told {
		all = append(all, x.what)
	}
	return all
}

func doing(commit bool) string {
	if commit {
		return "commit"
	}
	return "roll back"
}

// listening are hooks that are heard.
func listening() (*observe.TwoPC, *ear) {
	e := &ear{}
	return &observe.TwoPC{
		Decided:   func(o observe.TwoPCDecided) { e.hear("decided", doing(o.Commit)) },
		Tried:     func(o observe.TwoPCTried) { e.hear("tried", doing(o.Commit), o.Participant) },
		Ended:     func(o observe.TwoPCEnded) { e.hear("ended", o.State) },
		Heuristic: func(o observe.TwoPCHeuristic) { e.hear("heuristic", strings.Join(o.Participants, " ")) },
		Orphan:    func(o observe.TwoPCOrphan) { e.hear("orphan", o.Verdict, o.Participant) },
		Scanned: func(o observe.TwoPCScanned) {
			e.note(told{what: "scanned " + o.Participant, age: o.Oldest, since: o.BlockedFor, blocked: o.Blocked})
		},
	}, e
}

// sent are the messages that have left, as "north commit".
func (n *network) sent() (all []string) {
	for _, label := range n.labels() {
		if what, leaves := strings.CutSuffix(label, " "+leaving); leaves {
			all = append(all, what[:strings.LastIndex(what, " ")])
		}
	}
	return all
}
