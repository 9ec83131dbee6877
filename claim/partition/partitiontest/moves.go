package partitiontest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
)

// An Opening opens a lock system like another process; disconnect closes what the
// driver does not own.
type Opening func(t *testing.T) (d driver.Fenced, v driver.Values, disconnect func())

// MoveTimes measures how long a partition has no owner during a planned move. That is from the end
// of its work's context in one member to the begin of its work in another. Half of the partitions
// move at once, back and forth. It logs the result.
func MoveTimes(t *testing.T, open Opening, partitions, rounds int) {
	m := &moves{open: open, group: fmt.Sprint("of ", partitions), partitions: partitions, ended: map[int]time.Time{}}
	stay := m.join(t, "stays")
	for round := range rounds {
		comes := m.join(t, fmt.Sprint("comes ", round))
		comes.settled(t, partitions/2)
		comes.leave(t)
		stay.settled(t, partitions)
	}
	stay.leave(t)
	slices.Sort(m.took)
	at := func(percent int) time.Duration { return m.took[len(m.took)*percent/100].Round(100 * time.Microsecond) }
	t.Logf("%d moves: median %v, p99 %v", len(m.took), at(50), at(99))
}

// moves is a group whose members join and leave.
type moves struct {
	open       Opening
	group      string
	partitions int

	mu    sync.Mutex
	ended map[int]time.Time // when the work of the last owner was cancelled
	took  []time.Duration
}

type joined struct {
	*partition.Group
	driver     driver.Fenced
	disconnect func()
}

func (m *moves) join(t *testing.T, identity string) joined {
	t.Helper()
	d, v, disconnect := m.open(t)
	g, err := partition.Join(t.Context(), d, v, m.group, partition.Layout{Partitions: m.partitions}, &partition.Options{Identity: identity, Work: m.work})
	if err != nil {
		t.Fatal(err)
	}
	return joined{g, d, disconnect}
}

func (m *moves) work(ctx context.Context, p partition.Partition) error {
	m.mu.Lock()
	if ended, moved := m.ended[p.Index]; moved {
		m.took = append(m.took, time.Since(ended))
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.ended[p.Index] = time.Now()
	m.mu.Unlock()
	return nil
}

func (g joined) settled(t *testing.T, owned int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(g.Owned()) != owned; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s owns %d partitions, and not %d", g.Self().Identity, len(g.Owned()), owned)
		}
	}
}

func (g joined) leave(t *testing.T) {
	t.Helper()
	if err := g.Leave(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := g.driver.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	g.disconnect()
}
