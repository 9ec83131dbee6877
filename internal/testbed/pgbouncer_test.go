package testbed

import "testing"

// The pooler passes queries on, and does so again after it and the server behind
// it were killed and restarted.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			server := Postgres(t)
			pooler := PgBouncer(t, server, mode, "server_login_retry = 1")
			greets := func() bool { return greetPostgres(pooler.Addr()) == nil }
			if !greets() {
				t.Fatal("it does not answer")
			}
			pooler.Kill()
			if greets() {
				t.Fatal("it answers after it was killed")
			}
			pooler.Restart()
			server.Kill()
			server.Restart()
			Eventually(t, "it answers again", bound, greets)
		})
	}
}
