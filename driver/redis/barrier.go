package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var bodyLua, barrierLua = lua("body"), lua("barrier")

var barrierForgetScript = newScript(lua("barrier_forget"))

// barrierMoves is driver.BarrierState.Meet as a Lua table, and driver.MaxBarrierResult.
var barrierMoves = sync.OnceValue(func() string {
	var b strings.Builder
	b.WriteString("local MOVES = {\n")
	for _, s := range driver.BarrierStates() {
		fmt.Fprintf(&b, "  ['%s'] = {", s)
		for _, p := range []driver.BarrierPhase{driver.BarrierFirst, driver.BarrierConfirm, driver.BarrierUndo} {
			m := s.Meet(p)
			fmt.Fprintf(&b, " %s = { '%s', '%s' },", p, m.Outcome, m.Next)
		}
		b.WriteString(" },\n")
	}
	fmt.Fprintf(&b, "}\nlocal MAX_RESULT = %d\n", driver.MaxBarrierResult)
	return b.String()
})

// A Body is the business of a call: the text of a Lua function without its head. Keys
// and Args are its KEYS and ARGV. RESULT is the result of the branch's first call, or
// nil if that is unknown or this call is the first. `return refuse(why)` refuses;
// nothing may be written before. Any other value is the result: text unchanged,
// integers in digits, tables as JSON. Nothing, false and the reply of SET are the
// empty result. An empty Text does nothing. A result has at most driver.MaxBarrierResult
// bytes: check that before anything is written.
//
// Text is trusted code. Pass data in Args, never in Text, also because the server
// keeps every distinct text.
type Body struct {
	Text       string
	Keys, Args []string
}

// script returns lua after a function that runs the body.
func (b Body) script(lua string) *script {
	before, after, _ := strings.Cut(bodyLua(), "--BODY--")
	return newScript(literal(before + b.Text + after + lua))
}

// Barrier records the calls of branches beside the data that they change: one script checks a call
// and runs its business. It implements driver.Barrier. A branch is the hash
// interlock:{TAG}:barrier:NAME:…, followed by transaction, branch and step, each after its length.
// It never expires. Forget removes it once it is driver.BarrierSpread below the mark, unless its
// transaction is excepted. The sorted set interlock:{TAG}:barriers:NAME lists branches, the
// string interlock:{TAG}:barriermark:NAME is the mark, and the set
// interlock:{TAG}:barrierexcept:NAME has the exceptions.
//
// These keys are in the hash slot of the barrier's name, and the keys of every Body must be too.
// So marker and data move and fail over together. A barrier {shop} is for keys such as
// seat:{shop}:7. Data in several slots needs as many barriers.
//
// A marker is no more durable than its server. A crash without appendfsync always, or a
// failover to a replica, loses markers and data together. The branch is then as if its calls
// had never arrived: a repeated first call runs again, a confirm is a violation, and an undo
// takes nothing back. The coordinator does not repeat a call that was answered. If that is
// too little, keep the branch in a database. A server that may evict markers is refused
// ([ErrEviction]).
type Barrier struct {
	conn        *conn
	name        string
	markers     string // the prefix of markers
	index, mark string
	except      string // the set of transactions that the mark excepts
}

var _ driver.Barrier[Body] = (*Barrier)(nil)

// NewBarrier returns the barrier of a name of 1 to driver.MaxName bytes; it sends
// nothing. The caller closes the client.
func NewBarrier(client rueidis.Client, name string) *Barrier {
	own := ownKeys(name)
	return &Barrier{conn: newGuardConn(client, keepsMarks), name: name, markers: own + "barrier:" + name + ":",
		index: own + "barriers:" + name, mark: own + "barriermark:" + name, except: own + "barrierexcept:" + name}
}

// Call decides a call and runs its business if it is due; see driver.Barrier.
func (b *Barrier) Call(ctx context.Context, c driver.BarrierCall, business Body) (driver.BarrierAnswer, error) {
	asked := request{op: "pass barrier", name: c.Transaction}
	if err := c.Check(); err != nil {
		return driver.BarrierAnswer{}, err
	}
	if err := b.check(asked, business.Keys); err != nil {
		return driver.BarrierAnswer{}, err
	}
	member := counted(c.Transaction) + counted(c.Branch) + counted(c.Step)
	answer, err := b.conn.texts(ctx, asked, business.script(barrierMoves()+barrierLua()), batch{
		keys: append([]string{b.markers + member, b.index, b.mark, b.except}, business.Keys...),
		args: append([]string{member, string(c.Phase), string(c.Hash), strconv.FormatInt(c.Begun.UnixMilli(), 10), c.Transaction}, business.Args...),
	})
	switch {
	case err != nil:
		return driver.BarrierAnswer{}, err
	case len(answer) != 4:
		return driver.BarrierAnswer{}, uncertain(asked, errReply)
	case answer[0] == "failed":
		return driver.BarrierAnswer{}, uncertain(asked, fmt.Errorf("the body of %s failed, what it wrote before stays: %s", c.Phase, answer[2]))
	}
	a := driver.BarrierAnswer{Outcome: driver.BarrierOutcome(answer[0]), State: driver.BarrierState(answer[1]), Ran: answer[3] == "1"}
	if answer[2] != "" {
		a.Result = []byte(answer[2])
	}
	return a, nil
}

// check rejects reserved keys, and keys in other slots.
func (b *Barrier) check(asked request, keys []string) error {
	if err := checkName(b.name, ""); err != nil {
		return err
	}
	return checkBody(asked, "barrier", b.name, keys)
}

// Forget raises the mark and removes branches far enough below it, in one script; see
// driver.Barrier. The script blocks the server: a few milliseconds for a limit of a
// thousand, and for each thousand branches of excepted transactions, which it reads
// each time.
func (b *Barrier) Forget(ctx context.Context, mark time.Time, except []string, limit int) (int, error) {
	asked := request{op: "forget branches", name: b.name}
	if err := driver.CheckBarrierForget(mark, except, limit); err != nil {
		return 0, err
	}
	if err := b.check(asked, nil); err != nil {
		return 0, err
	}
	removed, err := b.conn.number(ctx, asked, barrierForgetScript, batch{
		keys: []string{b.index, b.mark, b.except},
		args: append([]string{b.markers, strconv.FormatInt(mark.UnixMilli(), 10), strconv.Itoa(limit), milliseconds(interlock.MaxAhead), milliseconds(driver.BarrierSpread)}, except...),
	})
	switch {
	case err != nil:
		return 0, err
	case removed < 0:
		return 0, problem(asked, interlock.Definite, errors.New("the mark is too far ahead of the server's clock"))
	}
	return int(removed), nil
}
