package testbed

import (
	"encoding/binary"
	"fmt"
	"io"
)

// greetPostgres logs in with the protocol itself: the start-up message, then messages
// of a type byte and a length each, until ReadyForQuery. A server that is still
// recovering answers with an error.
func greetPostgres(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(startup("user", "postgres", "database", "postgres")); err != nil {
		return err
	}
	for {
		kind, body, err := readMessage(conn)
		switch {
		case err != nil:
			return err
		case kind == 'E':
			return fmt.Errorf("refused: %q", body)
		case kind == 'Z':
			_, err := conn.Write([]byte{'X', 0, 0, 0, 4}) // Terminate
			return err
		}
	}
}

func startup(parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, 3<<16) // protocol 3.0
	for _, p := range parameters {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<16 {
		return 0, nil, fmt.Errorf("a message of %d bytes is not PostgreSQL's", size)
	}
	body = make([]byte, size-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}
