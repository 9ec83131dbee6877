package rehearsal

import (
	"context"
	"fmt"
	"time"
)

// Guarded makes a panic the failure of this call alone, which is not known to have had no effect.
func Guarded[O any](ctx context.Context, call func(ctx context.Context) (O, error)) (output O, err error) {
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
	return Guarded(ctx, call)
}
