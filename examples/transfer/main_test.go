package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"teller": sendTeller}) }

// patience bounds every wait. No step needs a tenth of it on a quiet machine.
const patience = time.Minute

var ok = testbed.OK

// TestExamples runs the program twice in each way; the second run finds the transfers.
func TestExamples(t *testing.T) {
	pg, maria := testbed.Shared(t, testbed.Postgres), testbed.Shared(t, testbed.MariaDB)
	for _, by := range []string{"tcc", "2pc"} {
		for _, which := range []string{"first", "second"} {
			var out strings.Builder
			ok(t, story(t.Context(), settings{by, pg.URL(), maria.URL()}, "1", &out))
			if out.String() != output {
				t.Errorf("%s, the %s run printed\n%s\nnot\n%s", by, which, &out, output)
			}
		}
	}
}

const output = `+60: moved
-20: moved
+90: refused
ann has 60 in the north, bob 40 in the south
`

const (
	transfers = 20
	accounts  = 4  // on each side
	opening   = 50 // in each
)

// plan returns all transfers of a test's tellers. Some exceed the balance; the first does
// not.
func plan(seed uint64) []Transfer {
	dice := rand.New(rand.NewPCG(seed, 0))
	all := []Transfer{{ID: "transfer/first", North: "0", South: "0", Cents: 1}}
	for i := range transfers {
		t := Transfer{ID: fmt.Sprint("transfer/", i), North: fmt.Sprint(dice.IntN(accounts)), South: fmt.Sprint(dice.IntN(accounts)), Cents: 1 + dice.Int64N(40)}
		if dice.IntN(2) == 0 {
			t.Cents = -t.Cents
		}
		all = append(all, t)
	}
	return all
}

// fate is the outcome of a transfer.
type fate struct {
	Transfer
	err error
}

// moveAll moves everything concurrently, repeats until the outcomes are known, and sends each.
func (b *bank) moveAll(ctx context.Context, all []Transfer) <-chan fate {
	fates := make(chan fate, len(all))
	for _, t := range all {
		go func() {
			err := b.way.move(ctx, t)
			for err != nil && !errors.Is(err, errRefused) && ctx.Err() == nil {
				err = b.way.move(ctx, t)
			}
			fates <- fate{t, err}
		}()
	}
	return fates
}

// sendTeller runs the process that is killed. It first moves one transfer alone, to check that
// it is the process that carries out decisions, and then all others concurrently. It prints
// the known outcomes.
func sendTeller(ctx context.Context, _ *crash.Points, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := open(ctx, settings{by: args[0], postgres: args[1], mariadb: args[2]})
	if err != nil {
		return err
	}
	defer b.close()
	for i := range accounts {
		if err := b.openAccounts(ctx, account{north, fmt.Sprint(i), opening}, account{south, fmt.Sprint(i), opening}); err != nil {
			return err
		}
	}
	all := plan(1)
	if err := errors.Join(b.way.move(ctx, all[0]), b.way.settle(ctx, all[0].ID)); err != nil {
		return err
	}
	fmt.Println("open")
	fates := b.moveAll(ctx, all[1:])
	for range transfers {
		f := <-fates
		fmt.Println(f.ID, f.err == nil)
	}
	return ctx.Err()
}

// TestKilled kills a process during twenty concurrent transfers. Another one, which was on
// standby, takes over and receives the same transfers. No money is lost or created,
// acknowledged transfers are made once, and nothing is in doubt in the
// end.
func TestKilled(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Shared(t, testbed.Postgres), testbed.Shared(t, testbed.MariaDB)
	for _, by := range []string{"tcc", "2pc"} {
		for _, lines := range []int{0, 3, 9} {
			t.Run(fmt.Sprintf("%s after %d", by, lines), func(t *testing.T) {
				if by == "tcc" { // the namespace of XA is that of the whole server
					t.Parallel()
				}
				s := settings{by: by, postgres: databases.Open(t, pg, databases.Pgx).URL, mariadb: databases.Open(t, maria, databases.Maria).URL}
				kill(t, s, lines)
			})
		}
	}
}

func kill(t *testing.T, s settings, lines int) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	told := map[string]bool{}
	p := crash.Start(t, "teller", 0, s.by, s.postgres, s.mariadb)
	p.Line(patience) // it is open
	b, err := open(ctx, s)
	ok(t, err)
	defer b.close()
	for range lines {
		id, moved, _ := strings.Cut(p.Line(patience), " ")
		told[id] = moved == "true"
	}
	p.Kill()
	fates := b.moveAll(ctx, plan(1))
	north, south := map[string]int64{}, map[string]int64{}
	made := 0
	for range transfers + 1 {
		f := <-fates
		if f.err == nil {
			made++
			north[f.North] -= f.Cents
			south[f.South] += f.Cents
			ok(t, b.way.settle(ctx, f.ID))
		} else if !errors.Is(f.err, errRefused) || told[f.ID] {
			t.Errorf("%s, reported as moved: %v: %v", f.ID, told[f.ID], f.err)
		}
	}
	if t.Logf("%d of %d moved, %d reported before", made, transfers, len(told)); made == 0 || made == transfers {
		t.Errorf("%d of %d are moved: nothing was tried", made, transfers)
	}
	b.want(ctx, t, north, south)
}

// want checks the balances, and that nothing is held or in doubt.
func (b *bank) want(ctx context.Context, t *testing.T, inNorth, inSouth map[string]int64) {
	t.Helper()
	testbed.Eventually(t, "nothing is in doubt", patience, func() bool { return b.pending(ctx, t) == 0 })
	sum := int64(0)
	for i := range accounts {
		name := fmt.Sprint(i)
		n, err := b.way.balance(ctx, north, name)
		ok(t, err)
		s, err := b.way.balance(ctx, south, name)
		ok(t, err)
		if sum += n + s; n != opening+inNorth[name] || s != opening+inSouth[name] || n < 0 || s < 0 {
			t.Errorf("account %s has %d and %d, want %d and %d", name, n, s, opening+inNorth[name], opening+inSouth[name])
		}
	}
	if sum != 2*accounts*opening {
		t.Errorf("there are %d, want %d", sum, 2*accounts*opening)
	}
}

// pending returns how much the databases show as held, announced or in doubt.
func (b *bank) pending(ctx context.Context, t *testing.T) (n int64) {
	t.Helper()
	if h, found := b.way.(*held); found {
		count := func(ctx context.Context, db interlock.SQL) error {
			for i := range accounts {
				l, err := money.Show(ctx, db, fmt.Sprint(i))
				if err != nil {
					return err
				}
				n += l.Held + l.Announced
			}
			return nil
		}
		ok(t, errors.Join(within(ctx, h.inNorth.DB, count), within(ctx, h.inSouth.DB, count)))
		return n
	}
	ok(t, b.pool.QueryRow(ctx, `select count(*) from pg_prepared_xacts`).Scan(&n))
	rows, err := b.db.QueryContext(ctx, `xa recover`)
	ok(t, err)
	defer rows.Close()
	for rows.Next() {
		n++
	}
	ok(t, rows.Err())
	return n
}
