package elect

// Remembered returns the number of elections that e remembers.
func Remembered(e *Election) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.led) + len(e.nominations)
}
