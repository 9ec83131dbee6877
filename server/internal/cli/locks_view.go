package cli

import (
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// lockView and contenderView are the JSON forms; docs/reference/cli.md promises them.
type lockView struct {
	Name    string          `json:"name"`
	Holder  *contenderView  `json:"holder"` // null if nobody holds it
	Waiters []contenderView `json:"waiters"`
}

type contenderView struct {
	Owner     string          `json:"owner"`
	Token     interlock.Token `json:"token,string,omitempty"`
	Since     *time.Time      `json:"since,omitempty"`      // by the backend's clock
	Deadline  *time.Time      `json:"deadline,omitempty"`   // by ours: when it expires unless renewed
	ExpiresMS int64           `json:"expires_ms,omitempty"` // the same, from now
	Foreign   bool            `json:"foreign,omitempty"`    // taken by another client
}

func view(l driver.LockState, now time.Time) lockView {
	v := lockView{Name: l.Name, Waiters: []contenderView{}}
	if l.Holder != nil {
		holder := viewContender(*l.Holder, now)
		v.Holder = &holder
	}
	for _, w := range l.Waiters {
		v.Waiters = append(v.Waiters, viewContender(w, now))
	}
	return v
}

func viewContender(c driver.Contender, now time.Time) contenderView {
	v := contenderView{Owner: c.Owner, Token: c.Token, Foreign: c.Foreign, ExpiresMS: c.Expires.Milliseconds()}
	if !c.Since.IsZero() {
		since := c.Since.UTC()
		v.Since = &since
	}
	if c.Expires > 0 {
		deadline := now.Add(c.Expires).UTC()
		v.Deadline = &deadline
	}
	return v
}
