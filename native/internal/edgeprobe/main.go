// Command edgeprobe measures a proxy in front of a sandbox: `serve` is the service inside, the other commands are its clients.
// The bench builds it; it is no part of the product.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "edgeprobe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: edgeprobe serve ADDRESS | (down | up) URL BYTES [NAME:VALUE…] | small URL SECONDS [NAME:VALUE…] | " +
			"idle URL COUNT [NAME:VALUE…]")
	}
	if args[0] == "serve" {
		return serve(args[1])
	}
	if len(args) < 3 {
		return fmt.Errorf("%s needs a URL and a number", args[0])
	}
	question, err := questionOf(args[1], args[2], args[3:])
	if err != nil {
		return err
	}
	switch args[0] {
	case "down":
		return say(question.down())
	case "up":
		return say(question.up())
	case "small":
		return say(question.small())
	case "idle":
		return question.idle()
	}
	return fmt.Errorf("%s: no such command", args[0])
}

// say prints one measurement as a line of JSON.
func say(result map[string]float64, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
