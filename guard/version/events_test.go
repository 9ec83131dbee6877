package version_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// guards returns a Table, and a Column of the rows of "orders".
func (w world) guards() map[string]version.Guard {
	w.DB.Exec(w.T, `create table orders (id varchar(64) primary key, status varchar(64) not null default 'new',
		version bigint, tie varchar(255), ended boolean)`)
	return map[string]version.Guard{"table": version.Table{},
		"column": version.Column{Table: "orders", Key: "id", Version: "version", Tie: "tie", Terminal: "ended"}}
}

func (w world) order(id string) {
	w.DB.Exec(w.T, `insert into orders (id) values (`+quoted(id)+`)`)
}

func setStatus(id, status string) string {
	return `update orders set status = ` + quoted(status) + ` where id = ` + quoted(id)
}

func testUnseen(w world) {
	w.guards()
	t := version.Table{}
	w.mustApply(t, change("new", 7, ""), version.Applied)
	w.mustApply(t, change("new", 6, "z"), version.Stale)
	w.mustApply(t, deleted(change("gone", 5, "")), version.Applied)
	w.mustApply(t, change("gone", 4, ""), version.Stale, `insert into orders (id) values ('gone')`)
	w.mustApply(t, change("gone", 5, ""), version.Duplicate)
	s := w.state("gone")
	if s.Stamp != (version.Stamp{Version: 5}) || !s.Deleted || s.Terminal || s.Changed.IsZero() {
		w.Errorf("the tombstone is %+v", s)
	}
	w.mustApply(t, change("gone", 6, ""), version.Applied)
	if s := w.state("gone"); s.Deleted || s.Stamp.Version != 6 {
		w.Errorf("it came back as %+v", s)
	}
	if s := w.state("never"); s != (version.State{}) {
		w.Errorf("an entity that is not known is %+v", s)
	}
	if n := w.text(`select concat(count(*)) from orders`); n != "0" {
		w.Errorf("%s orders were inserted by stale events", n)
	}
}

// testJudged: random sequences of changes, with ties that only a comparison of bytes orders correctly;
// each outcome is that of driver.Versioned.
func testJudged(w world) {
	const beyond = 1<<53 + 1 // not a float
	ties := []string{"", "a", "ab", "a b", "a\x01", "a ", "B", "z", "é", "10", "9"}
	r := rand.New(rand.NewPCG(8, 1))
	for kind, g := range w.guards() {
		for life := range 20 {
			id, stored := fmt.Sprintf("%s %d", kind, life), driver.Versioned{}
			w.order(id)
			for range 12 {
				c := change(id, beyond+r.Int64N(2), ties[r.IntN(len(ties))])
				c.Terminal, c.TerminalWins = r.IntN(6) == 0, r.IntN(2) == 0
				v := driver.Versioned{Stamp: c.Stamp, Terminal: c.Terminal, TerminalWins: c.TerminalWins}
				want, before := v.Judge(stored), stored
				if want == version.Applied {
					stored = v
				}
				if o, err := w.apply(g, c, setStatus(id, "x")); err != nil || o != want {
					w.Fatalf("%s: %+v where %+v is: %v, %v; want %v", kind, v, before, o, err, want)
				}
			}
		}
	}
}

// testRacingConsumers: two consumers of each of three partitions read the same events at once, each
// in its own order and at its own level. The applied changes, in their order, follow the rule.
func testRacingConsumers(w world) {
	serial := map[driver.Dialect]string{driver.Postgres: "bigserial", driver.MariaDB: "bigint auto_increment"}[w.Dialect]
	w.DB.Exec(w.T, `create table done (n `+serial+` primary key, id varchar(64), version bigint, tie varchar(9), ended int)`)
	for kind, g := range w.guards() {
		const entities = 4
		brought := map[string]driver.Versioned{} // the expected final state
		var lanes [6][]version.Change
		for lane := range lanes {
			r := rand.New(rand.NewPCG(11, uint64(lane/2)))
			for range 40 {
				c := change(fmt.Sprint(kind, r.IntN(entities)), 1+r.Int64N(30), fmt.Sprint(r.IntN(2)))
				if strings.HasSuffix(c.Entity, "0") && c.Stamp == (version.Stamp{Version: 12, Tie: "0"}) {
					c = wins(c)
				}
				lanes[lane] = append(lanes[lane], c)
				v := driver.Versioned{Stamp: c.Stamp, Terminal: c.Terminal, TerminalWins: c.TerminalWins}
				if v.Judge(brought[c.Entity]) == version.Applied {
					brought[c.Entity] = v
				}
			}
			rand.New(rand.NewPCG(12, uint64(lane))).Shuffle(40, func(i, j int) { lanes[lane][i], lanes[lane][j] = lanes[lane][j], lanes[lane][i] })
		}
		for i := range entities {
			w.order(fmt.Sprint(kind, i))
		}
		var running sync.WaitGroup
		for i, lane := range lanes {
			level := []driver.Isolation{driver.SessionIsolation, driver.ReadCommitted, driver.RepeatableRead, driver.Serializable}[i%4]
			running.Go(func() {
				for _, c := range lane {
					if _, err := w.patiently(level, g, c); err != nil {
						w.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		stored := w.done(kind)
		for id, v := range brought {
			if got := w.text(`select status from orders where id = ` + quoted(id)); got != v.Stamp.String() || stored[id].Stamp != v.Stamp {
				w.Errorf("%s: %q stayed, and %v was done last; want %v", id, got, stored[id].Stamp, v)
			}
		}
	}
}

// done replays the applied changes of the entities of one kind, and returns their final states.
func (w world) done(kind string) map[string]driver.Versioned {
	w.Helper()
	stored := map[string]driver.Versioned{}
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		return db.Query(ctx, `select id, version, tie, ended from done where id like `+quoted(kind+"%")+` order by n`, nil, func(scan func(...any) error) error {
			var id string
			var ended int
			var v driver.Versioned
			if err := scan(&id, &v.Stamp.Version, &v.Stamp.Tie, &ended); err != nil {
				return err
			}
			v.Terminal, v.TerminalWins = ended == 1, ended == 1
			if o := v.Judge(stored[id]); o != version.Applied {
				w.Errorf("%s: %+v was done after %+v: it is %v", id, v, stored[id], o)
			}
			stored[id] = v
			return nil
		})
	})
	return stored
}

// patiently applies a change, writes the stamp into the row and logs it; it retries after a
// deadlock or a serialization failure.
func (w world) patiently(level driver.Isolation, g version.Guard, c version.Change) (o version.Outcome, err error) {
	at := world{w.T, &databases.DB{BeginnerAt: leveled{w.DB.BeginnerAt, level}}}
	note := fmt.Sprintf(`insert into done (id, version, tie, ended) values ('%s', %d, '%s', %d)`, c.Entity, c.Stamp.Version, c.Stamp.Tie,
		map[bool]int{true: 1}[c.Terminal])
	for range 1000 {
		if o, err = at.apply(g, c, setStatus(c.Entity, c.Stamp.String()), note); interlock.Kind(err) != interlock.Retryable {
			break
		}
	}
	return o, err
}

func testBadInput(w world) {
	guards := w.guards()
	long := strings.Repeat("x", driver.MaxName+1)
	tie := strings.Repeat("t", driver.MaxTie)
	for kind, g := range guards {
		for _, bad := range []version.Change{change("", 1, ""), change(long, 1, ""), change("a\x00", 1, ""), change("\xff", 1, ""),
			change("a", 0, ""), change("a", -1, ""), change("a", 1, tie+"t"), change("a", 1, "\x00"), change("a", 1, "\xff")} {
			_, err := w.apply(g, bad)
			mustFail(w.T, err, interlock.Bug, nil)
		}
		w.order(kind)
		w.mustApply(g, change(kind, 1, tie), version.Applied)
		w.mustApply(g, change(kind, 1, tie), version.Duplicate)
	}
	w.mustApply(version.Table{}, change(`'; drop table orders; -- \ "`, 1, `' \`), version.Applied)
	w.mustApply(version.Table{}, change(`'; DROP table orders; -- \ "`, 1, `' \`), version.Applied)
	w.mustApply(version.Table{}, change(long[1:], 1, ""), version.Applied)
	_, err := w.apply(version.Table{Name: "not_there"}, change("a", 1, ""))
	mustFail(w.T, err, interlock.Definite, nil)
	if !strings.Contains(err.Error(), "Create") {
		w.Errorf("%v does not say what to do", err)
	}
	_, err = w.apply(version.Table{Name: "a.b.c"}, change("a", 1, ""))
	mustFail(w.T, err, interlock.Bug, interlock.ErrName)
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		_, err := version.Table{}.Show(ctx, db, "")
		mustFail(w.T, err, interlock.Bug, interlock.ErrName)
		_, err = version.Table{}.Apply(ctx, spoken{db}, change("a", 1, ""))
		mustFail(w.T, err, interlock.Bug, nil)
		return nil
	})
	// A closed database.
	db, closed, err := databases.Connect(w.Context(), w.Client, w.URL)
	ok(w.T, err)
	closed()
	err = version.Tx(w.Context(), updater(w.T, version.Options{}), db, "a", func(context.Context, driver.SQL) error { return nil })
	if known, found := errors.AsType[*interlock.Error](err); !found || known.Kind == interlock.Uncertain {
		w.Errorf("a transaction on a database that was closed: %v", err)
	}
}

// spoken has an unknown dialect.
type spoken struct{ driver.SQL }

func (spoken) Dialect() driver.Dialect { return "latin" }

func testColumn(w world) {
	w.guards()
	w.DB.Exec(w.T, `create table seat (no int primary key, version bigint not null default 0, note varchar(9))`,
		`insert into seat (no) values (12)`, `create table twice (k varchar(9), version bigint)`, `insert into twice (k) values ('k'), ('k')`)
	seat := version.Column{Table: "seat", Key: "no", Version: "version"}
	w.mustApply(seat, change("12", 3, ""), version.Applied)
	w.mustApply(seat, change("12", 2, ""), version.Stale)
	w.mustApply(seat, change("12", 3, ""), version.Duplicate)
	if got := w.text(`select concat(version) from seat`); got != "3" {
		w.Errorf("version %s", got)
	}
	var missing *version.NoRowError
	_, err := w.apply(seat, change("13", 1, ""))
	if mustFail(w.T, err, interlock.Definite, nil); !errors.As(err, &missing) || missing.Key != "13" {
		w.Errorf("no row: %v", err)
	}
	for _, bad := range []version.Change{change("12", 4, "tie"), terminal(change("12", 4, ""))} {
		_, err := w.apply(seat, bad)
		mustFail(w.T, err, interlock.Bug, nil)
	}
	_, err = w.apply(version.Column{Table: "twice", Key: "k", Version: "version"}, change("k", 4, ""))
	mustFail(w.T, err, interlock.Bug, nil)
	for _, c := range []version.Column{{}, {Table: "seat"}, {Table: "seat", Key: "no"}} {
		_, err := w.apply(c, change("12", 4, ""))
		mustFail(w.T, err, interlock.Bug, interlock.ErrName)
	}
	_, err = w.apply(version.Column{Table: "seat", Key: "no", Version: "absent"}, change("12", 4, ""))
	mustFail(w.T, err, interlock.Definite, nil)
	w.order("alice")
	if w.Dialect == driver.MariaDB { // its texts are equal regardless of case, unless a collation distinguishes them
		_, err := w.apply(version.Column{Table: "orders", Key: "id", Version: "version"}, change("ALICE", 1, ""))
		mustFail(w.T, err, interlock.Definite, nil)
	}
	// A row is inserted with its stamp.
	w.DB.Exec(w.T, `insert into seat (no, version) values (13, 5)`)
	w.mustApply(seat, change("13", 4, ""), version.Stale)
}
