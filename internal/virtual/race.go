//go:build race

package virtual

import (
	"runtime"
	"sync"
)

// bubbles are those that run now, and the processors to use after the last.
var bubbles struct {
	sync.Mutex
	running, processors int
}

func enter() {
	bubbles.Lock()
	defer bubbles.Unlock()
	if bubbles.running++; bubbles.running == 1 {
		bubbles.processors = runtime.GOMAXPROCS(1)
	}
}

func leave() {
	bubbles.Lock()
	defer bubbles.Unlock()
	if bubbles.running--; bubbles.running == 0 {
		runtime.GOMAXPROCS(bubbles.processors)
	}
}
