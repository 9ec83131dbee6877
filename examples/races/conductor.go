package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// actor is one worker of a race. It calls pause at each point at which others may
// overtake it, with the state that it observes there, for the timeline.
type actor struct {
	name string
	play func(ctx context.Context, pause func(observed string)) error
}

// stage runs actors: start starts one, now or later, waiting counts the blocked
// actors, and note records what they observe.
type stage struct {
	start   func(ctx context.Context, run func()) error
	waiting func(context.Context) (int, error)
	note    func(actor, observed string)
}

// atOnce starts each actor in a goroutine.
func atOnce(_ context.Context, run func()) error { go run(); return nil }

// bound is the time limit of an act.
const bound = 30 * time.Second

// afterwards closes a resource of an act, even if ctx has ended.
func afterwards(ctx context.Context, close func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return close(ctx)
}

// act runs the actors in an order of steps: each entry lets the named actor continue to its next
// pause, or to its end. After the order, all run freely. So a race does not depend on luck, and
// the same order is forced on correct code. If an actor blocks, the order continues without it, as
// soon as the server reports that it waits.
func (g stage) act(ctx context.Context, order []string, actors ...actor) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c := &conductor{stage: g, parts: map[string]*part{}, rests: make(chan rest), over: make(chan struct{})}
	var err error
	for _, a := range actors {
		p := &part{permits: make(chan struct{}, len(order))}
		if err = g.start(ctx, func() { c.run(ctx, p, a) }); err != nil {
			break
		}
		c.parts[a.name] = p
	}
	if err == nil {
		err = c.lead(ctx, order)
	}
	close(c.over)
	for c.count((*part).playing) > 0 {
		err = errors.Join(err, c.rested(<-c.rests))
	}
	return err
}

type conductor struct {
	stage
	parts map[string]*part
	rests chan rest
	over  chan struct{} // closed at the end of the order
}

// part is the conductor's state of an actor: how often it stopped, the first time
// before it begins, and how often it was continued.
type part struct {
	permits       chan struct{}
	arrived, sent int
	ended         bool
}

// rest reports that an actor has paused or ended.
type rest struct {
	part  *part
	ended bool
	err   error
}

func (p *part) playing() bool { return !p.ended }
func (p *part) running() bool { return !p.ended && p.arrived <= p.sent }

func (c *conductor) count(matches func(*part) bool) (n int) {
	for _, p := range c.parts {
		if matches(p) {
			n++
		}
	}
	return n
}

func (c *conductor) rested(r rest) error {
	r.part.arrived++
	r.part.ended = r.ended
	return r.err
}

func (c *conductor) run(ctx context.Context, p *part, a actor) {
	pause := func(observed string) {
		if observed != "" {
			c.note(a.name, observed)
		}
		c.rests <- rest{part: p}
		select {
		case <-p.permits:
		case <-c.over:
		}
	}
	pause("")
	err := a.play(ctx, pause)
	if err != nil {
		err = fmt.Errorf("%s: %w", a.name, err)
	}
	c.rests <- rest{part: p, ended: true, err: err}
}

// lead lets the actors make their steps in order.
func (c *conductor) lead(ctx context.Context, order []string) (err error) {
	for _, name := range order {
		p := c.parts[name]
		if p.ended {
			continue
		}
		p.sent++
		p.permits <- struct{}{}
		if err = errors.Join(err, c.settle(ctx, p)); err != nil {
			return err
		}
	}
	return nil
}

// settle returns when p has stopped, or when all running actors are blocked.
func (c *conductor) settle(ctx context.Context, p *part) (err error) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for p.running() {
		select {
		case r := <-c.rests:
			err = errors.Join(err, c.rested(r))
		case <-look.C:
			n, failed := c.waiting(ctx)
			if failed != nil || n >= c.count((*part).running) {
				return errors.Join(err, failed)
			}
		}
	}
	return err
}
