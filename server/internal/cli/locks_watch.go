package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// watchLimit is the most watched locks. pollInterval is the interval of full reads without a hint,
// to detect an outage and changes without hints. retryInterval is the pause after a failed read.
const (
	watchLimit    = 10000
	pollInterval  = 5 * time.Second
	retryInterval = time.Second
)

func (a *app) watchCommand() *cobra.Command {
	var internal bool
	c := &cobra.Command{
		Use: "watch [PREFIX]", Short: "Print every change of holders and waiters", Args: atMostOne("prefix"),
		Example: `  interlock locks watch
  interlock locks watch account/
  interlock locks watch -o json                  one line of JSON each`,
		Long: `It first prints the locks that are held or awaited. It can miss a state that is over
at once: a lock that is released and taken again may appear only with its new holder. It
survives interruptions of the backend and says so; a signal ends it, with 0.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			return a.watch(c.Context(), prefixOf(args), internal)
		},
	}
	c.Flags().BoolVar(&internal, "all", false, allUsage)
	return c
}

func (a *app) watch(ctx context.Context, prefix string, internal bool) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	v, err := a.view(ctx)
	if signalError(ctx) != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer v.close()
	w := &watch{inspection: v, prefix: prefix, internal: internal || internalName(prefix), hint: make(chan struct{}, 1), known: map[string]printedLock{}, outage: interruption{app: a}}
	if err := w.run(ctx); err != nil && signalError(ctx) == nil {
		return a.backendError(v.target, err)
	}
	return nil
}

// watch is one run of locks watch.
type watch struct {
	*inspection
	prefix    string
	internal  bool // print internal locks, too
	known     map[string]printedLock
	truncated bool // the limit was reported
	polled    boottime.Instant
	outage    interruption

	hint chan struct{} // there are changed names
	mu   sync.Mutex
	all  bool
	some map[string]bool
}

// printedLock is a lock as last printed.
type printedLock struct {
	driver.LockState
	ends boottime.Instant // when to check whether the holder expired; 0 for never
}

// changed records a change; the driver calls it.
func (w *watch) changed(name string) {
	if w.hides(name) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "" {
		w.all = true
	} else {
		w.want(name)
	}
	select {
	case w.hint <- struct{}{}:
	default:
	}
}

func (w *watch) hides(name string) bool { return !w.internal && internalName(name) }

func (w *watch) want(name string) {
	if w.some == nil {
		w.some = map[string]bool{}
	}
	w.some[name] = true
}

// take returns and clears the pending reads: everything, or some names.
func (w *watch) take(now boottime.Instant) (all bool, names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.known {
		if s.ends != 0 && now >= s.ends {
			w.want(name)
		}
	}
	all, names = w.all || now >= w.polled.Add(pollInterval), slices.Sorted(maps.Keys(w.some))
	w.all, w.some = false, nil
	return all, names
}

// run reads after a hint of the driver and after the expiry of a lease.
func (w *watch) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	var watching sync.WaitGroup
	watching.Go(func() { failed <- w.follow(ctx) })
	defer watching.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.hint:
		case <-timer.C:
		}
		pause, err := w.look(ctx)
		if err != nil {
			return err
		}
		timer.Reset(pause)
	}
}

// follow watches until ctx ends, and reconnects.
func (w *watch) follow(ctx context.Context) error {
	for {
		err := w.Watch(ctx, w.prefix, w.changed)
		if ctx.Err() != nil || codeOf(err) != exitUnreachable {
			return err
		}
		if err := pause(ctx, retryInterval); err != nil {
			return err
		}
	}
}

// look prints changes, and returns the time until the next read without a hint. After a failed read,
// the next one is a full one.
func (w *watch) look(ctx context.Context) (pause time.Duration, err error) {
	all, names := w.take(boottime.Now())
	lctx, cancel := context.WithTimeout(ctx, w.app.timeout)
	defer cancel()
	if all {
		w.polled = boottime.Now()
		err = w.lookAtAll(lctx)
	}
	for _, name := range names {
		if err == nil && !all {
			err = w.lookAt(lctx, name)
		}
	}
	var broken *exitError
	switch {
	case err == nil:
		if all {
			w.outage.ends(w.target)
		}
		return w.untilNext(), nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.As(err, &broken) || codeOf(err) != exitUnreachable:
		return 0, err
	}
	w.outage.begins(err)
	w.mu.Lock()
	w.all = true
	w.mu.Unlock()
	return retryInterval, nil
}

// An interruption of a backend is reported at its begin and at its end.
type interruption struct {
	app  *app
	down bool
}

func (i *interruption) begins(err error) {
	if !i.down {
		i.app.say("interrupted: %v; trying again", err)
	}
	i.down = true
}

func (i *interruption) ends(backend any) {
	if i.down {
		i.app.say("%v answers again", backend)
	}
	i.down = false
}

func (w *watch) untilNext() time.Duration {
	next := w.polled.Add(pollInterval)
	for _, s := range w.known {
		if s.ends != 0 {
			next = min(next, s.ends)
		}
	}
	return max(10*time.Millisecond, next.Sub(boottime.Now()))
}

func (w *watch) lookAtAll(ctx context.Context) error {
	locks, more, err := w.Locks(ctx, w.prefix, watchLimit)
	if err != nil {
		return err
	}
	if more && !w.truncated {
		w.truncated = true
		w.app.say("there are more than %d locks; give a prefix, or some changes are not seen", watchLimit)
	}
	listed := map[string]bool{}
	for _, l := range locks {
		if w.hides(l.Name) {
			continue
		}
		listed[l.Name] = true
		if err := w.update(l); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		if listed[name] {
			continue
		}
		if err := w.lookAt(ctx, name); err != nil { // some locks can be read but are not listed
			return err
		}
	}
	return nil
}

func (w *watch) lookAt(ctx context.Context, name string) error {
	state, err := w.Lock(ctx, name)
	if err != nil {
		return err
	}
	return w.update(state)
}

// update prints a state unless it is unchanged.
func (w *watch) update(l driver.LockState) error {
	old := w.known[l.Name]
	if l.Holder == nil && len(l.Waiters) == 0 {
		delete(w.known, l.Name)
	} else {
		s := printedLock{LockState: l}
		if l.Holder != nil && l.Holder.Expires > 0 {
			s.ends = boottime.Now().Add(l.Holder.Expires + 50*time.Millisecond)
		}
		w.known[l.Name] = s
	}
	change := changeOf(old.LockState, l)
	if change == "" {
		return nil
	}
	now := time.Now()
	return w.app.print(struct {
		At     time.Time `json:"at"` // by our clock
		Change string    `json:"change"`
		lockView
	}{now.UTC(), change, view(l, now)}, line("%s  %s\n", now.Format(time.TimeOnly), changeText(l)))
}

// changeOf returns held (by another holder), free, or waiters; empty without a change.
func changeOf(old, now driver.LockState) string {
	was, holder := old.Holder, now.Holder
	switch {
	case was != nil && holder == nil:
		return "free"
	case holder != nil && (was == nil || was.Owner != holder.Owner || was.Token != holder.Token):
		return "held"
	case !slices.EqualFunc(old.Waiters, now.Waiters, func(a, b driver.Contender) bool { return a.Owner == b.Owner }):
		return "waiters"
	}
	return ""
}

func changeText(l driver.LockState) text {
	t := line("%s is free", l.Name)
	if l.Holder != nil {
		t = line("%s is held by %s%s", l.Name, describe(*l.Holder), kindOf(*l.Holder))
	}
	if len(l.Waiters) == 0 {
		return t
	}
	owners := make([]string, len(l.Waiters))
	for i, c := range l.Waiters {
		owners[i] = c.Owner
	}
	return t + line("; %d waiting: %s", len(l.Waiters), strings.Join(owners, ", "))
}
