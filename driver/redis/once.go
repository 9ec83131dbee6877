package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	onceClaimScript  = newScript(lua("once_claim"))
	onceDoneScript   = newScript(lua("once_done"))
	onceForgetScript = newScript(lua("once_forget"))
)

// Once remembers the messages of a consumer whose effects are elsewhere; one script
// checks and records. For effects on data in the same Redis use [Inbox]. It
// implements driver.Once. A message is the hash
// interlock:{TAG}:once:LENGTH:CONSUMER:ID, where LENGTH is that of CONSUMER in bytes,
// and expires. After a crash without appendfsync always, or a failover to a replica,
// a lost message counts as new; a clock that is set forward ends leases and records
// early.
type Once struct{ conn *conn }

var _ driver.Once = (*Once)(nil)

// NewOnce returns a Once; it sends nothing. The caller closes the client.
func NewOnce(client rueidis.Client) *Once { return &Once{conn: newGuardConn(client, keepsAll)} }

func onceKey(d driver.Delivery) string {
	return fenceKey("once", strconv.Itoa(len(d.Consumer))+":"+d.Consumer+":"+d.ID)
}

// Claim takes a message unless it is done or taken; see driver.Once.
func (o *Once) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	asked := request{op: "claim message", name: d.ID}
	answer, err := o.ask(ctx, asked, onceClaimScript, d, lease, d.Owner, string(d.Hash), milliseconds(lease))
	if err != nil {
		return driver.Unclaimed, err
	}
	switch status := answer[0]; {
	case status == "claimed":
		return driver.ClaimedNow, nil
	case status == "done":
		return driver.ClaimedDone, nil
	case status == "other":
		return driver.ClaimedOther, nil
	case status == "held" && len(answer) == 2:
		return driver.Unclaimed, problem(asked, interlock.Retryable, &interlock.HeldError{Name: d.ID, Owner: answer[1]})
	}
	return driver.Unclaimed, uncertain(asked, errReply)
}

// Done records that the effect was applied; see driver.Once.
func (o *Once) Done(ctx context.Context, d driver.Delivery, keep time.Duration) error {
	asked := request{op: "record message", name: d.ID}
	answer, err := o.ask(ctx, asked, onceDoneScript, d, keep, d.Owner, string(d.Hash), milliseconds(keep))
	switch {
	case err != nil:
		return err
	case answer[0] == "done":
		return nil
	case answer[0] == "lost":
		return problem(asked, interlock.Definite, interlock.ErrLost)
	}
	return uncertain(asked, errReply)
}

// Forget ends a claim; see driver.Once.
func (o *Once) Forget(ctx context.Context, d driver.Delivery) error {
	_, err := o.ask(ctx, request{op: "forget message", name: d.ID, gives: true}, onceForgetScript, d, time.Second, d.Owner)
	return err
}

// ask runs a script on a message. The answer has at least one field.
func (o *Once) ask(ctx context.Context, asked request, s *script, d driver.Delivery, keep time.Duration, args ...string) ([]string, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if keep < time.Millisecond || keep > driver.MaxKeep {
		return nil, problem(asked, interlock.Bug, fmt.Errorf("a retention of %v is invalid: it must be 1ms to %v", keep, driver.MaxKeep))
	}
	return o.conn.texts(ctx, asked, s, batch{keys: []string{onceKey(d)}, args: args})
}
