package backend

// BreakingCosts says what a forced release costs on this backend besides the one
// lock, and when its holder learns of it.
func (t Target) BreakingCosts() string {
	kind, table := t.Kind(), t.Setting("mode") == "table"
	switch {
	case kind == "mysql" && !table:
		return "the holder's whole session is ended, with every lock that its process holds in this database"
	case kind == "postgres" && !table:
		return "a holder whose process does not give it up within a second has its whole session ended, " +
			"and loses every lock that it holds in this database"
	case kind == "kube":
		return "the holder learns of it when it sees the Lease changed or fails to renew it"
	case kind == "postgres", kind == "mysql":
		return "the holder learns of it with its next renewal"
	}
	return ""
}

// Forgetting says which forced releases this backend does not remember.
func (t Target) Forgetting() string {
	switch t.Kind() {
	case "etcd", "zookeeper":
		return "about the last thousand of the namespace are kept"
	case "redis":
		return "the last thousand of each hash slot are kept, for as long as the server keeps its data"
	case "kube":
		return "the last sixteen of each Lease are kept, for as long as the Lease exists"
	}
	return "they are kept until somebody deletes them from the table"
}
