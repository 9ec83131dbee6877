package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	fenceLua, fenceEvalLua = lua("fence"), lua("fence_eval")

	enterScript  = newScript(lua("fence", "fence_enter").after(constants))
	rebaseScript = newScript(lua("fence", "fence_rebase").after(constants))
)

// maxAhead is interlock.MaxAhead as the scripts take it, in microseconds.
var maxAhead = strconv.FormatInt(interlock.MaxAhead.Microseconds(), 10)

// Fence guards data in Redis: one script checks the token and writes the data. It
// implements driver.Fence. The mark of a resource is the hash
// interlock:{TAG}:mark:RESOURCE, which never expires. A loss of the database, or a
// failover to a replica, loses marks together with their writes.
type Fence struct {
	conn *conn
	kind string // of the key that holds the mark
}

// NewFence returns a fence; it sends nothing. The caller closes the client.
func NewFence(client rueidis.Client) *Fence {
	return &Fence{conn: newGuardConn(client, keepsMarks), kind: "mark"}
}

// Enter checks the token, raises the mark and applies the writes in one step;
// see driver.Fence. Strings are written without a time to live.
func (f *Fence) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	b, err := f.entry(r)
	if err != nil {
		return err
	}
	for _, w := range writes {
		if err := checkWrite(r, w); err != nil {
			return err
		}
		b.keys = append(b.keys, w.Key)
		b.args = append(b.args, how(w), string(w.Value))
	}
	_, err = f.enter(ctx, enterScript, r, b)
	return err
}

// Eval checks the token, raises the mark and then runs body, a Lua text of EVAL, in
// one script. keys and args are KEYS and ARGV of body. It returns what body
// returns. No other request runs in between, but Redis does not undo writes: if
// body fails half way, the mark and its writes stay, and the error is Uncertain.
//
// body is trusted code. Pass data in args, never in its text, also because the
// server keeps every distinct text.
func (f *Fence) Eval(ctx context.Context, r driver.Raise, body string, keys, args []string) (rueidis.RedisMessage, error) {
	b, err := f.entry(r)
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	b.keys, b.args = append(b.keys, keys...), append(b.args, args...)
	before, after, _ := strings.Cut(fenceEvalLua(), "--BODY--")
	answer, err := f.enter(ctx, newScript(literal(constants+fenceLua()+before+body+after)), r, b)
	if err != nil || len(answer) < 2 {
		return rueidis.RedisMessage{}, err
	}
	return answer[1], nil
}

// Mark returns the mark of a resource; see driver.Fence.
func (f *Fence) Mark(ctx context.Context, resource string) (driver.Mark, error) {
	asked := request{op: "show mark", name: resource}
	if err := checkName(resource, ""); err != nil {
		return driver.Mark{}, err
	}
	fields, err := f.conn.fields(ctx, asked, fenceKey(f.kind, resource))
	if err != nil || fields["token"] == "" {
		return driver.Mark{}, err
	}
	return parseMark(asked, fields["token"], fields["source"], fields["raised"])
}

// Rebase sets the mark and appends to the list interlock:{TAG}:rebase:RESOURCE what
// was changed, why and by whom, as JSON; see driver.Fence. to may be 0, as if no
// token had entered. The server's clock decides which token is implausible.
func (f *Fence) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	asked := request{op: "rebase mark", name: resource}
	if err := checkName(resource, ""); err != nil {
		return driver.Mark{}, err
	}
	if to != 0 && !to.Valid() {
		return driver.Mark{}, problem(asked, interlock.Bug, fmt.Errorf("%d is not a token", to))
	}
	answer, err := f.conn.texts(ctx, asked, rebaseScript, batch{
		keys: []string{fenceKey(f.kind, resource), fenceKey("rebase", resource)},
		args: append(tokenArgs(to), maxAhead, reason, by, driver.RebaseSource(by, reason)),
	})
	switch {
	case err != nil:
		return driver.Mark{}, err
	case len(answer) == 4 && answer[0] == "rebased":
		old, err := parseMark(asked, answer[1], answer[2], answer[3])
		if err != nil { // it is replaced nevertheless
			return driver.Mark{}, uncertain(asked, err)
		}
		return old, nil
	case len(answer) == 1 && answer[0] == "implausible":
		return driver.Mark{}, implausible(asked, to)
	}
	return driver.Mark{}, uncertain(asked, errReply)
}

func (f *Fence) enter(ctx context.Context, s *script, r driver.Raise, b batch) ([]rueidis.RedisMessage, error) {
	return f.conn.enterMark(ctx, request{op: "enter", name: r.Resource}, s, r, b)
}

// enterMark runs a script that begins with entering, and parses its refusals.
func (c *conn) enterMark(ctx context.Context, asked request, s *script, r driver.Raise, b batch) ([]rueidis.RedisMessage, error) {
	m, err := c.eval(ctx, asked, s, b)
	if err != nil {
		return nil, err
	}
	answer, err := m.ToArray()
	if err != nil || len(answer) == 0 {
		return nil, uncertain(asked, errReply)
	}
	switch status, _ := answer[0].ToString(); status {
	case "entered":
		return answer, nil
	case "failed":
		why, _ := answer[len(answer)-1].ToString()
		return nil, uncertain(asked, fmt.Errorf("the body failed, what it wrote before stays: %s", why))
	case "stale":
		return nil, stale(asked, r, answer)
	case "implausible":
		return nil, implausible(asked, r.Token)
	}
	return nil, uncertain(asked, errReply)
}

func stale(asked request, r driver.Raise, answer []rueidis.RedisMessage) error {
	e := &interlock.StaleTokenError{Resource: r.Resource, Got: r.Token}
	if len(answer) > 1 {
		seen, _ := answer[1].AsInt64()
		e.Seen = interlock.Token(seen)
	}
	return problem(asked, interlock.Definite, e)
}

func implausible(asked request, t interlock.Token) error {
	return problem(asked, interlock.Definite, fmt.Errorf("%w: %d is more than %v ahead of the server's clock",
		interlock.ErrImplausibleToken, t, interlock.MaxAhead))
}

// entry returns the arguments of entering.
func (f *Fence) entry(r driver.Raise) (batch, error) {
	if err := checkName(r.Resource, ""); err != nil {
		return batch{}, err
	}
	if !r.Token.Valid() {
		return batch{}, problem(request{op: "enter", name: r.Resource}, interlock.Bug,
			fmt.Errorf("%d is not a token", r.Token))
	}
	return batch{
		keys: []string{fenceKey(f.kind, r.Resource)},
		args: append(tokenArgs(r.Token), r.Source, flag(r.Strict), maxAhead),
	}, nil
}

func tokenArgs(t interlock.Token) []string {
	return []string{strconv.FormatInt(t.Counter(), 10), strconv.Itoa(t.Sub()), t.String()}
}

func checkWrite(r driver.Raise, w driver.Write) error {
	if w.Key != "" && !strings.HasPrefix(w.Key, reserved) {
		return nil
	}
	return problem(request{op: "enter", name: r.Resource}, interlock.Bug,
		fmt.Errorf("the key %q cannot be written: it is empty, or begins with %s", w.Key, reserved))
}

func fenceKey(kind, resource string) string {
	return reserved + tags.of(slotOf(resource)) + "}:" + kind + ":" + resource // as ownKeys, in one allocation
}

func parseMark(asked request, token, source, raised string) (driver.Mark, error) {
	t, err := driver.ParseInt(token)
	if err != nil || t < 0 {
		return driver.Mark{}, problem(asked, interlock.Definite, fmt.Errorf("the mark is damaged: token %q", token))
	}
	at, err := driver.ParseInt(raised)
	if err != nil {
		return driver.Mark{}, problem(asked, interlock.Definite, fmt.Errorf("the mark is damaged: raised %q", raised))
	}
	return driver.Mark{Token: interlock.Token(t), Source: source, Raised: serverTime(at)}, nil
}
