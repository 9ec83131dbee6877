package rehearsal

import (
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

// Bubble plays in the virtual time of [testing/synctest], which begins at the present.
// It hangs if something that was begun in it waits for ever.
func Bubble(t *testing.T, play func()) (hangs bool) {
	t.Helper()
	defer func() { hangs = deadlocked(recover()) }()
	virtual.Test(t, func(*testing.T) {
		time.Sleep(time.Until(began))
		play()
	})
	return false
}

// deadlocked reports whether a panic of synctest says that something in the bubble waits
// for ever.
func deadlocked(cause any) bool {
	err, is := cause.(error)
	if cause != nil && !(is && strings.HasPrefix(err.Error(), "deadlock")) {
		panic(cause)
	}
	return cause != nil
}
