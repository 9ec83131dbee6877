package testbed

import "testing"

// TestPgBouncer checks that the pooler forwards queries, also after it and its server
// were killed and restarted.
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
