package testbed

import (
	"encoding/binary"
	"fmt"
	"io"
)

// greetMariaDB logs in with the protocol itself. The server speaks first, and answers
// a login without a password by a packet that begins with 0. To hang up earlier would
// count as an attack.
func greetMariaDB(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	hello, err := readPacket(conn)
	if err != nil {
		return err
	}
	if len(hello) == 0 || hello[0] != 10 {
		return fmt.Errorf("refused: %q", hello)
	}
	if _, err := conn.Write(packet(1, login("root"))); err != nil {
		return err
	}
	answer, err := readPacket(conn)
	if err != nil {
		return err
	}
	if len(answer) == 0 || answer[0] != 0 {
		return fmt.Errorf("refused: %q", answer)
	}
	_, err = conn.Write(packet(0, []byte{1})) // COM_QUIT
	return err
}

// login returns a login without a password, in the protocol of version 4.1.
func login(user string) []byte {
	const protocol41, secure = 0x200, 0x8000
	body := binary.LittleEndian.AppendUint32(nil, protocol41|secure)
	body = binary.LittleEndian.AppendUint32(body, 1<<24) // the longest packet
	body = append(body, 45)                              // utf8mb4_general_ci
	body = append(body, make([]byte, 23)...)
	body = append(append(body, user...), 0)
	return append(body, 0) // an empty password
}

// packet prepends length and number to body.
func packet(number byte, body []byte) []byte {
	n := len(body)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), number}, body...)
}

func readPacket(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err := io.ReadFull(r, body)
	return body, err
}
