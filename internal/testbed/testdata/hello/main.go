// Hello is built by the tests of testbed.
package main

import "fmt"

func main() { fmt.Println("hello") }
