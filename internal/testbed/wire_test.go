package testbed

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// redis sends one command and returns the first line of the answer.
func redis(t *testing.T, s *Server, words ...string) string {
	t.Helper()
	conn, err := dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(w), w)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("redis %v: %v", words, err)
	}
	return strings.TrimSpace(line)
}

// query runs one statement in the simple protocol and returns the first column of the
// last row.
func query(t *testing.T, s *Server, statement string) string {
	t.Helper()
	conn, err := dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write(startup("user", "postgres", "database", "postgres"))
	result, ready := "", 0
	for {
		kind, body, err := readMessage(conn)
		switch {
		case err != nil:
			t.Fatalf("%s: %v", statement, err)
		case kind == 'E':
			t.Fatalf("%s: %q", statement, body)
		case kind == 'D':
			result = string(body[6 : 6+binary.BigEndian.Uint32(body[2:6])])
		case kind == 'Z' && ready == 0:
			ready++
			message := append([]byte(statement), 0)
			head := binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(len(message)+4))
			conn.Write(append(head, message...))
		case kind == 'Z':
			return result
		}
	}
}
