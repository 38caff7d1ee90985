// Command hostile is a set of tiny programs that misbehave in one way each, for
// tests of what owns processes. It is never part of a build of Troupe.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

func usage() {
	fmt.Fprintln(os.Stderr, `usage: hostile PROGRAM
  sleep                 does nothing for ever
  ignore-term           ignores SIGTERM, SIGINT and SIGHUP
  on-term CODE          exits with CODE at SIGTERM
  daemon [CODE]         leaves a grandchild in its own session, with no environment and
                        closed descriptors, and exits with CODE
  family                has children and grandchildren that ignore SIGTERM, and stays
  hop                   goes on in a new session of a new process again and again
  spin                  burns every processor
  close-stdio           closes its standard descriptors and stays
  eat BYTES             touches that much memory and stays
  print BYTES           writes that many binary bytes to stdout
  exit CODE             exits with CODE
  env                   prints its environment as a JSON list
  raise-rank N CODE     exits with CODE if RANK is N, else sleeps`)
	os.Exit(64)
}

func number(i int) int {
	if len(os.Args) <= i {
		usage()
	}
	n, err := strconv.Atoi(os.Args[i])
	if err != nil {
		usage()
	}
	return n
}

// spawn starts this program again, in its own session, with no environment.
func spawn(args ...string) {
	argv := append([]string{"hostile"}, args...)
	attr := &syscall.ProcAttr{Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true}}
	if _, err := syscall.ForkExec("/proc/self/exe", argv, attr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func sleep() { time.Sleep(24 * time.Hour) }

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "sleep":
		sleep()
	case "ignore-term":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println("ready")
		sleep()
	case "on-term":
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, syscall.SIGTERM)
		fmt.Println("ready")
		<-ch
		os.Exit(number(2))
	case "daemon":
		spawn("between")
		if len(os.Args) > 2 {
			os.Exit(number(2))
		}
	case "between":
		spawn("sleep")
	case "family":
		signal.Ignore(syscall.SIGTERM)
		for range 3 {
			spawn("parent")
		}
		fmt.Println("ready")
		sleep()
	case "parent":
		signal.Ignore(syscall.SIGTERM)
		spawn("ignore-term")
		sleep()
	case "hop":
		spawn("hop")
	case "spin":
		for range runtime.NumCPU() {
			go func() {
				for { //nolint:staticcheck // spinning is the point
				}
			}()
		}
		fmt.Println("ready")
		sleep()
	case "close-stdio":
		fmt.Println("ready")
		for fd := range 3 {
			syscall.Close(fd)
		}
		sleep()
	case "eat":
		b := make([]byte, number(2))
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
			if i%(1<<20) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		sleep()
		fmt.Println(len(b))
	case "print":
		w := bufio.NewWriterSize(os.Stdout, 1<<20)
		for i := range number(2) {
			_ = w.WriteByte(byte(i * 7)) // Flush tells
		}
		if w.Flush() != nil {
			os.Exit(1)
		}
	case "exit":
		os.Exit(number(2))
	case "env":
		if json.NewEncoder(os.Stdout).Encode(os.Environ()) != nil {
			os.Exit(1)
		}
	case "raise-rank":
		if os.Getenv("RANK") == os.Args[2] {
			os.Exit(number(3))
		}
		sleep()
	default:
		usage()
	}
}
