package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

//go:embed script/body.lua
var bodyLua string

//go:embed script/barrier.lua
var barrierLua string

//go:embed script/barrier_forget.lua
var barrierForgetLua string

var barrierForgetScript = newScript(barrierForgetLua)

// barrierMoves is driver.BarrierState.Meet, as the script takes it.
var barrierMoves = func() string {
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
	b.WriteString("}\n")
	return b.String()
}()

// A Body is the business of a call: the text of a Lua function, without its head, that
// runs with Keys and Args as its KEYS and ARGV, and with RESULT, what the first of the
// branch returned, or nil if that is not known, or this is the first. It refuses by
// `return refuse(why)`, before it has written anything. What else it returns is the
// result: a text as it is, a whole number in digits, a table as JSON; nothing, false
// and the reply of a SET are the empty one. An empty Text does nothing.
//
// Text is trusted code. Data belongs in Args, never in it, also because the server
// keeps every distinct text that it was sent.
type Body struct {
	Text       string
	Keys, Args []string
}

// script is what runs the body, and has it answer.
func (b Body) script(lua string) *script {
	before, after, _ := strings.Cut(bodyLua, "--BODY--")
	return newScript(before + b.Text + after + lua)
}

// Barrier remembers which calls of branches have come, beside the data that they
// change; it is asked and the business run by one script. It implements
// driver.Barrier. A branch is the hash interlock:{TAG}:barrier:NAME:…, with transaction,
// branch and step and the length before each of the three. It never expires: Forget
// removes it, by the sorted set interlock:{TAG}:barriers:NAME, once it lies
// driver.BarrierSpread below the mark, the string interlock:{TAG}:barriermark:NAME, unless its transaction is in
// the set interlock:{TAG}:barrierexcept:NAME.
//
// All of that is in the hash slot of the barrier's name, and so must be the keys of
// every Body, so that marker and data live, move and fail over together: a barrier
// {shop} is for keys such as seat:{shop}:7. Those who have data in many slots need as
// many barriers.
//
// A marker is no more durable than its server. What a crash without appendfsync always,
// or a failover to a replica, loses of it, it loses of the data as well, so that a
// branch is as if its calls had never come: a repeated first is done again, a confirm is
// a violation, and an undo takes nothing back. But the coordinator, which has the answer that
// it was done, does not repeat a call that was answered. Where that is too little, keep
// the branch in a database. A server that may evict markers is refused ([ErrEviction]).
type Barrier struct {
	conn        *conn
	name        string
	markers     string // the prefix of markers
	index, mark string
	except      string // the set of transactions that the mark excepts
}

var _ driver.Barrier[Body] = (*Barrier)(nil)

// NewBarrier makes a barrier of a name, 1 to driver.MaxName bytes; it sends nothing.
// The client stays the caller's.
func NewBarrier(client rueidis.Client, name string) *Barrier {
	own := reserved + tags.of(slotOf(name)) + "}:"
	return &Barrier{conn: newGuardConn(client, keepsMarks), name: name, markers: own + "barrier:" + name + ":",
		index: own + "barriers:" + name, mark: own + "barriermark:" + name, except: own + "barrierexcept:" + name}
}

// Call answers a call, and may run its business; see driver.Barrier.
func (b *Barrier) Call(ctx context.Context, c driver.BarrierCall, business Body) (driver.BarrierAnswer, error) {
	asked := request{op: "pass barrier", name: c.Transaction}
	if err := c.Check(); err != nil {
		return driver.BarrierAnswer{}, err
	}
	if err := b.check(asked, business.Keys); err != nil {
		return driver.BarrierAnswer{}, err
	}
	member := counted(c.Transaction) + counted(c.Branch) + counted(c.Step)
	m, err := b.conn.eval(ctx, asked, business.script(barrierMoves+barrierLua), batch{
		keys: append([]string{b.markers + member, b.index, b.mark, b.except}, business.Keys...),
		args: append([]string{member, string(c.Phase), string(c.Hash), strconv.FormatInt(c.Begun.UnixMilli(), 10), c.Transaction}, business.Args...),
	})
	if err != nil {
		return driver.BarrierAnswer{}, err
	}
	answer, err := m.AsStrSlice()
	switch {
	case err != nil || len(answer) != 4:
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

// check refuses what would not be in one slot, or is ours.
func (b *Barrier) check(asked request, keys []string) error {
	if err := checkName(b.name, ""); err != nil {
		return err
	}
	return checkBody(asked, "barrier", b.name, keys)
}

// Forget raises the mark and removes what lies far enough below it, in one script; see
// driver.Barrier. The server does nothing else meanwhile: a few milliseconds for a
// limit of a thousand, and for a thousand branches of excepted transactions, which it
// looks at each time.
func (b *Barrier) Forget(ctx context.Context, mark time.Time, except []string, limit int) (int, error) {
	asked := request{op: "forget branches", name: b.name}
	if err := driver.CheckBarrierForget(mark, except, limit); err != nil {
		return 0, err
	}
	if err := b.check(asked, nil); err != nil {
		return 0, err
	}
	m, err := b.conn.eval(ctx, asked, barrierForgetScript, batch{
		keys: []string{b.index, b.mark, b.except},
		args: append([]string{b.markers, strconv.FormatInt(mark.UnixMilli(), 10), strconv.Itoa(limit), milliseconds(interlock.MaxAhead), milliseconds(driver.BarrierSpread)}, except...),
	})
	if err != nil {
		return 0, err
	}
	removed, err := m.AsInt64()
	switch {
	case err != nil:
		return 0, uncertain(asked, errReply)
	case removed < 0:
		return 0, problem(asked, interlock.Definite, errors.New("the mark is too far ahead of the server's clock"))
	}
	return int(removed), nil
}
