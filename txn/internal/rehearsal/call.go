package rehearsal

import (
	"context"
	"fmt"
	"time"
)

// CatchPanic makes a panic the failure of this call alone, which is not known to have had no effect.
func CatchPanic[O any](ctx context.Context, call func(ctx context.Context) (O, error)) (output O, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return call(ctx)
}

// Late makes a call that arrives when nobody waits for it any more.
func Late[O any](ctx context.Context, call func(ctx context.Context) (O, error)) (O, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return CatchPanic(ctx, call)
}

// Deliver makes a call as often as it arrives. answered receives each answer.
func Deliver[O any](ctx context.Context, m Mishap, call func(ctx context.Context) (O, error), answered func(error)) (output O, err error) {
	if m.Absent {
		return output, nil
	}
	output, err = CatchPanic(ctx, call)
	answered(err)
	if m.Twice {
		_, again := CatchPanic(ctx, call)
		answered(again)
	}
	return output, err
}

// Between makes a call between two points; p.Words are what is called.
func Between[O any](l *Life, p Point, call func() (O, error)) (output O, err error) {
	before, after := p, p
	before.Words, after.Words = "before it called "+p.Words, "before it heard the answer of "+p.Words
	if err := l.Pass(before); err != nil {
		return output, err
	}
	output, err = call()
	if crashed := l.Pass(after); crashed != nil {
		var none O
		return none, crashed
	}
	return output, err
}
