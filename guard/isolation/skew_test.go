package isolation_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// A way to go off call only if another doctor stays: the level, and the statement that
// a transaction reads before it decides. before, if any, runs first.
type way struct {
	level        driver.Isolation
	before, look string
	broken       bool
}

const lookOnly = `select name from doctor where on_call = 1 order by name`

var ways = map[string]way{
	"serializable":                              {level: driver.Serializable, look: lookOnly},
	"a row that stands for the set":             {level: driver.ReadCommitted, before: `update shift set changes = changes + 1 where id = 1`, look: lookOnly},
	"a lock on the set":                         {level: driver.ReadCommitted, look: lookOnly + ` for update`},
	"a look at read committed, which is broken": {level: driver.ReadCommitted, look: lookOnly, broken: true},
	"a snapshot, which is broken":               {level: driver.RepeatableRead, look: lookOnly, broken: true},
}

var errLastDoctor = errors.New("somebody has to stay on call")

// TestWriteSkew: two doctors on call go off call at the same moment. The rounds are seeded, and
// equal for each way.
func TestWriteSkew(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, way := range ways {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := open(t)
				db.Exec(t, `create table doctor (name varchar(9) primary key, on_call int not null)`,
					`create table shift (id int primary key, changes bigint not null)`,
					`insert into doctor (name, on_call) values ('alice', 1), ('bob', 1)`, `insert into shift (id, changes) values (1, 0)`)
				way.rounds(t, db)
			})
		}
	}, databases.Pgx, databases.Maria)
}

// rounds of a broken way meet between read and write, so that the anomaly happens
// whenever the database allows it.
func (w way) rounds(t *testing.T, db *databases.DB) {
	const rounds = 250
	empty, refused := 0, 0
	for round := range rounds {
		db.Exec(t, `update doctor set on_call = 1`)
		r := rand.New(rand.NewPCG(11, uint64(round)))
		var both sync.WaitGroup
		meeting := newMeeting(w.broken)
		errs := make([]error, 2)
		for i, name := range []string{"alice", "bob"} {
			pause := time.Duration(r.IntN(400)) * time.Microsecond
			both.Go(func() { errs[i] = w.goHome(t.Context(), db, name, pause, meeting) })
		}
		both.Wait()
		for _, err := range errs {
			switch {
			case errors.Is(err, errLastDoctor):
				refused++
			case err != nil:
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if databases.One[int64](t, db, `select count(*) from doctor where on_call = 1`) == 0 {
			empty++
		}
	}
	switch {
	case w.broken && empty < rounds*95/100:
		t.Errorf("%d of %d rounds ended with nobody on call: it is not shown", empty, rounds)
	case !w.broken && (empty > 0 || refused != rounds):
		t.Errorf("of %d rounds %d ended with nobody on call, and %d with one who stayed", rounds, empty, refused)
	}
}

// goHome reads who is on call, and goes off if another doctor is.
func (w way) goHome(ctx context.Context, db *databases.DB, name string, pause time.Duration, m *meeting) error {
	return isolation.Do(ctx, db, w.level, &isolation.Options{Attempts: 20}, func(ctx context.Context, tx driver.SQL) error {
		if w.before != "" {
			if _, err := tx.Exec(ctx, w.before); err != nil {
				return err
			}
		}
		others := 0
		err := tx.Query(ctx, w.look, nil, func(scan func(...any) error) error {
			var on string
			err := scan(&on)
			if on != name {
				others++
			}
			return err
		})
		if err != nil {
			return err
		}
		if others == 0 {
			return errLastDoctor
		}
		m.wait()
		time.Sleep(pause) // it takes time to decide
		_, err = tx.Exec(ctx, `update doctor set on_call = 0 where name = '`+name+`'`)
		return err
	})
}

// meeting makes both wait for each other, if wanted.
type meeting struct {
	arrived atomic.Int64
	all     chan struct{}
}

func newMeeting(wanted bool) *meeting {
	if !wanted {
		return nil
	}
	return &meeting{all: make(chan struct{})}
}

func (m *meeting) wait() {
	if m == nil {
		return
	}
	if m.arrived.Add(1) == 2 {
		close(m.all)
	}
	select {
	case <-m.all:
	case <-time.After(bound):
	}
}
