package testbed

import (
	"bytes"
	"log/slog"
	"testing"
)

// CaptureLog returns what slog.Default logs until the test ends. No other test may log meanwhile.
func CaptureLog(tb testing.TB) *bytes.Buffer {
	tb.Helper()
	var lines bytes.Buffer
	before := slog.Default()
	tb.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	return &lines
}
