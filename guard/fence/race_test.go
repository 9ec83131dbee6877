package fence_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testRace lets workers with tokens of all ages read a balance and write it back
// after a pause. Accepted writes must add up, in order.
func testRace(t *testing.T, w world) {
	for kind, marks := range w.marks() {
		var file bytes.Buffer
		hw, err := history.NewWriter(&file, history.Header{Run: kind}, nil)
		ok(t, err)
		var wg sync.WaitGroup
		for lane := range 6 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(lane)))
				for i := range 20 {
					c := grant(i+r.IntN(6), bound) // mostly rising, often stale
					call := hw.Invoke(history.Event{Lane: fmt.Sprint(lane), Op: history.OpWrite, Key: kind, Token: c.Token()})
					call.End(w.tx(t.Context(), marks, c, "alice", func(ctx context.Context, db driver.SQL) error {
						balance, err := databases.Value[int64](ctx, db, `select balance from account where id = 'alice'`)
						if err != nil {
							return err
						}
						_, err = db.Exec(ctx, fmt.Sprintf(`update account set balance = %d where id = 'alice'`, balance+1))
						return err
					}))
				}
			})
		}
		wg.Wait()
		hr, err := history.NewReader(&file)
		ok(t, err)
		report, err := history.CheckTokens(hr.Events())
		ok(t, err)
		want := fmt.Sprint(100 + report.Accepted)
		got := w.text(t, `select concat(balance) from account where id = 'alice'`)
		if !report.OK() || report.Accepted == 0 || report.Rejected == 0 || report.Accepted+report.Rejected != 120 || got != want {
			t.Errorf("%s: balance %s, want %s; %v", kind, got, want, report)
		}
		w.Exec(t, `update account set balance = 100`)
	}
}
