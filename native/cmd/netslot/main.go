// netslot carries out what aenvd has decided about network slots: one process for all that a change takes, in any number of
// namespaces. Needs root.
//
//	netslot apply     carries out a plan (JSON, standard input)
//	netslot compile   turns a text for `nft` (standard input) into tables for plans (base64, standard output)
package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"

	"aenv/native/internal/netslot"
)

// maxInputBytes bounds a plan, and a text.
const maxInputBytes = 16 << 20

func main() {
	if len(os.Args) != 2 {
		usage()
	}
	input, err := io.ReadAll(io.LimitReader(os.Stdin, maxInputBytes+1))
	if len(input) > maxInputBytes {
		err = fmt.Errorf("the input is longer than %d bytes", maxInputBytes)
	}
	if err == nil {
		err = run(os.Args[1], input)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "netslot:", err)
		os.Exit(1)
	}
}

func run(command string, input []byte) error {
	switch command {
	case "apply":
		plan, err := netslot.ParsePlan(input)
		if err != nil {
			return err
		}
		return netslot.Apply(plan)
	case "compile":
		tables, err := netslot.Compile(input)
		if err != nil {
			return err
		}
		_, err = fmt.Println(base64.StdEncoding.EncodeToString(tables))
		return err
	}
	usage()
	return nil
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: netslot apply|compile")
	os.Exit(2)
}
