// Hello is built by a test.
package main

import "fmt"

func main() { fmt.Println("hello") }
