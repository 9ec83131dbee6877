package queue_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestSoak runs drivertest.RunQueueSoak for INTERLOCK_SOAK_QUEUE, a duration.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_QUEUE"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_QUEUE is not set to a duration")
	}
	for client, start := range map[string]func(testing.TB, ...string) *testbed.Server{databases.Pgx: testbed.Postgres, databases.Maria: testbed.MariaDB} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			s := &soak{T: t, db: databases.Open(t, server, client)}
			s.db.Do(t, table.Create)
			drivertest.RunQueueSoak(t, length, drivertest.QueueSoak{Add: s.add, Join: s.join, Retry: queue.Retry, Dead: queue.Dead, Restart: func() {
				server.Kill()
				server.Restart()
			}})
		})
	}
}

type soak struct {
	*testing.T
	db *databases.DB
}

// try runs work in a transaction on a connection of its own, which no restart has broken.
func (s *soak) try(work func(ctx context.Context, tx driver.SQL) error) error {
	db, closed, err := databases.Connect(s.Context(), s.db.Client, s.db.URL)
	if err != nil {
		return err
	}
	defer closed()
	return (&databases.DB{BeginnerAt: db}).Try(s.Context(), work)
}

func (s *soak) add(ids ...string) {
	var all []queue.Message
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		all = append(all, queue.Message{ID: id, Key: key})
	}
	testbed.OK(s, s.try(func(ctx context.Context, tx driver.SQL) error { return table.Add(ctx, tx, "q", all...) }))
}

func (s *soak) join(handler drivertest.QueueHandler) drivertest.SoakMember {
	path := testbed.NewProxy(s.T, s.db.Server.Addr())
	db, closed, err := databases.Connect(context.WithoutCancel(s.Context()), s.db.Client, strings.Replace(s.db.URL, s.db.Server.Addr(), path.Addr(), 1))
	testbed.OK(s, err)
	s.Cleanup(closed)
	c := queuetest.Start(s.T, queue.FromTable(db, table, nil), "q", 2*time.Second, handler)
	return drivertest.SoakMember{Path: path, Consumer: c, Done: func() bool {
		left := int64(1)
		err := s.try(func(ctx context.Context, tx driver.SQL) (err error) {
			left, err = databases.Value[int64](ctx, tx, `select count(*) from interlock_queue`)
			return err
		})
		return err == nil && left == 0
	}}
}

// TestClockSetBack: the clock of the database is set back by an hour. Messages that are handled
// then are settled, later ones are handled, and tokens go on rising.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	for client, start := range map[string]func(testing.TB, ...string) *testbed.Server{databases.Pgx: testbed.Postgres, databases.Maria: testbed.MariaDB} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			s := &soak{T: t, db: databases.Open(t, server, client)}
			s.db.Do(t, table.Create)
			s.add(drivertest.QueueIDs(3, 0, 2)...)
			c := drivertest.JoinQueue(t, queue.FromTable(s.db.Again(t), table, nil), "q", driver.QueueOptions{Lease: time.Minute})
			tokens := map[string]interlock.Token{}
			for round := range 3 {
				got := c.Take(6)
				if round == 0 {
					server.StepClock(-time.Hour)
				}
				s.add(drivertest.QueueIDs(3, 2*round+2, 2)...)
				c.Record(driver.Ack, got...)
				for _, m := range got {
					if _, number, _ := strings.Cut(m.ID, "/"); m.Attempt != 1 || number == fmt.Sprintf("%04d", 2*round) && m.Claim.Token() <= tokens[m.Key] {
						t.Errorf("%s: attempt %d, token %v after %v", m.ID, m.Attempt, m.Claim.Token(), tokens[m.Key])
					}
					tokens[m.Key] = m.Claim.Token()
				}
			}
			ok(t, c.Close(t.Context()))
		})
	}
}
