package httpapi

import "time"

// Patience sets the bound for the arrival of a request.
func Patience(s *Service, d time.Duration) { s.patience = d }
