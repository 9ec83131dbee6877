package twopc

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestZombieMessages: what a process had sent when it crashed arrives at any point of
// the next one's life, or after it.
func TestZombieMessages(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			for _, message := range p.run(t, nil)[0].labels {
				if !strings.HasSuffix(message, leaving) {
					continue
				}
				for _, at := range append(p.haunt(t, message, "after it all"), "after it all") {
					p.haunt(t, message, at)
					if runs++; t.Failed() {
						t.Fatalf("%q, sent by a process that has crashed, arrives at %q", message, at)
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// haunt has the last message of a crashed process arrive when its successor passes a
// point. It returns the points of the successor.
func (p plot) haunt(t *testing.T, message, at string) (labels []string) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		w := newWorld()
		var arrive sync.Once
		kept := func() {}
		x := w.start(t, nil, nil)
		x.network.keep = func(label string, deliver func() error) (lost bool) {
			if label == message {
				kept = func() { _ = deliver() }
				x.network.die()
			}
			return label == message
		}
		lives := []life{p.liveAs(t, w, x, 0)}
		for _, bank := range w.banks {
			bank.Restart()
		}
		lives = append(lives, p.live(t, w, 1, func(label string) error {
			if label == at {
				arrive.Do(kept)
			}
			return nil
		}))
		labels = lives[1].labels
		arrive.Do(kept)
		p.check(t, w, append(lives, p.live(t, w, 2, nil)))
	})
	return labels
}

// TestPausedProcess: a process that is stopped at any point, for as long as another
// one takes to finish what it left, follows what it then finds.
func TestPausedProcess(t *testing.T) {
	for name, p := range plots {
		if p.again {
			continue // the second one would wait for the first one's locks
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := p.run(t, nil)[0]
			for _, label := range whole.labels {
				for _, slow := range []bool{false, true} {
					bubble(t, func(t *testing.T) { p.pause(t, label, slow) })
					if t.Failed() {
						t.Fatalf("stopped at %q, slow %v", label, slow)
					}
				}
			}
		})
	}
}

// pause stops a process at a label. If it is slow it has waited for the journal all
// the while when it wakes up, else it has given up.
func (p plot) pause(t *testing.T, label string, slow bool) {
	w := newWorld()
	w.slow = slow
	stopped, wake := make(chan struct{}), make(chan struct{})
	x := w.start(t, func(at string) error {
		if at == label {
			close(stopped)
			<-wake
		}
		return nil
	}, nil)
	first := make(chan life, 1)
	go func() { first <- p.liveAs(t, w, x, 0) }()
	<-stopped
	other := p.finish(t, w)
	close(wake)
	synctest.Wait()
	lives := []life{<-first, other, p.finish(t, w)}
	p.check(t, w, lives)
}

// finish is the life of a process that runs nothing itself.
func (p plot) finish(t *testing.T, w *world) life {
	return plot{deltas: p.deltas}.liveAs(t, w, w.start(t, nil, nil), 1)
}

// die ends a process while a message of it is on its way.
func (n *network) die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.dead {
		n.dead = true
		close(n.died)
	}
}
