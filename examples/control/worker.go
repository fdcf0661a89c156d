// Report the status of a service to the node from Go; the standard library only.
//
//	SVCNODE_CONTROL=/run/svcnode/control.sock go run worker.go ID TTL_IN_SECONDS
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

var client = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("SVCNODE_CONTROL"))
	},
}}

func node(method, path, body string) error {
	request, _ := http.NewRequest(method, "http://localhost/v1/"+path, strings.NewReader(body))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode >= 400 {
		return fmt.Errorf("%s %s", response.Status, text)
	}
	return nil
}

type worker struct {
	service, ttl string
	registered   bool
}

// The node may be away, and after that it may not know the service.
func (w *worker) report(document string) error {
	if !w.registered {
		if err := node("PUT", w.service, fmt.Sprintf(`{"ttl": %q, "name": "Worker in Go"}`, w.ttl)); err != nil {
			return err
		}
	}
	err := node("PUT", w.service+"/status", document)
	w.registered = err == nil
	return err
}

func main() {
	id, ttl := os.Args[1], os.Args[2]+"s"
	interval, err := time.ParseDuration(ttl)
	if err != nil {
		log.Fatal(err)
	}
	w := worker{service: "services/" + url.PathEscape(id), ttl: ttl}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	for {
		if err := w.report(`{"status": "up"}`); err != nil {
			log.Print(err)
		}
		select {
		case <-time.After(interval / 3):
		case <-stop:
			if err := w.report(`{"status": "down", "reason": "stopped"}`); err != nil {
				log.Print(err)
				return
			}
			node("DELETE", w.service, "")
			return
		}
	}
}
