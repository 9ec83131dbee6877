package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An actor is one worker of a race. It calls pause wherever the others may get
// ahead of it, and says for the timeline what it believes to know there.
type actor struct {
	name string
	play func(ctx context.Context, pause func(believes string)) error
}

// A stage is where actors play: start begins one, now or later, waiting counts
// those who are made to wait by what they share, and note keeps what they believe.
type stage struct {
	start   func(ctx context.Context, run func()) error
	waiting func(context.Context) (int, error)
	note    func(actor, believes string)
}

// atOnce gives each actor a goroutine.
func atOnce(_ context.Context, run func()) error { go run(); return nil }

// bound is how long one act may take.
const bound = 30 * time.Second

// afterwards closes what an act has used, also if ctx has ended.
func afterwards(ctx context.Context, close func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	return close(ctx)
}

// act plays the actors in an order of steps: each entry lets the actor of that
// name go on to its next pause, or to its end. When the order is used up, all
// run freely. So a race is not a matter of luck, and the same order is forced on
// code that is right: who is made to wait is left waiting, as soon as the server
// says so, and the order goes on without it.
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
	over  chan struct{} // closed when the order is used up
}

// A part is what the conductor knows of an actor: how often it came to rest, the
// first time before it begins, and how often it was let go on.
type part struct {
	permits       chan struct{}
	arrived, sent int
	ended         bool
}

// A rest is an actor's coming to a pause, or to its end.
type rest struct {
	part  *part
	ended bool
	err   error
}

func (p *part) playing() bool { return !p.ended }
func (p *part) running() bool { return !p.ended && p.arrived <= p.sent }

func (c *conductor) count(is func(*part) bool) (n int) {
	for _, p := range c.parts {
		if is(p) {
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
	pause := func(believes string) {
		if believes != "" {
			c.note(a.name, believes)
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

// lead lets one actor after the other make a step.
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

// settle returns when p has stopped, or when all who run are made to wait.
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
