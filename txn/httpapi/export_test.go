package httpapi

import "time"

// Patience is how long a request may take to come.
func Patience(s *Service, d time.Duration) { s.patience = d }
