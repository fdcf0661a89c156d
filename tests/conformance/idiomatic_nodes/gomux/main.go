// A node on Go's net/http mux. With the argument "naive" it reads the version as many programs do: Get cannot tell an empty value from none.
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"slices"
)

type service struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Status      string `json:"status"`
}

var services = []service{
	{"db", "Database", "Holds the ledger", "Up"},
	{"indexer", "Indexer", "Follows the chain", "Initializing"},
	{"storage", "Storage", "Keeps the blobs", "Down"},
}

var codes = map[string]int{"Up": 200, "Initializing": 206, "Down": 503}

func sendJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(value)
}

func isSupported(r *http.Request) bool {
	versions, isGiven := r.URL.Query()["version"]
	if slices.Contains(os.Args, "naive") {
		isGiven = r.URL.Query().Get("version") != ""
	}
	return !isGiven || slices.Contains([]string{"v0.0.1", "0.0.1"}, versions[0])
}

func versioned(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isSupported(r) {
			sendJSON(w, 404, map[string]string{"message": "API version not found"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /svc/node", func(w http.ResponseWriter, r *http.Request) {
		sendJSON(w, 200, map[string]string{"node_name": "go", "spec_version": "v0.0.1", "node_version": "v1.0.0"})
	})
	mux.HandleFunc("GET /svc/node/health", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(206)
	})
	mux.HandleFunc("GET /svc/node/services", func(w http.ResponseWriter, r *http.Request) {
		sendJSON(w, 200, map[string]any{"services": services})
	})
	mux.HandleFunc("GET /svc/node/services/{id}/health", func(w http.ResponseWriter, r *http.Request) {
		index := slices.IndexFunc(services, func(each service) bool { return each.ID == r.PathValue("id") })
		if index < 0 {
			sendJSON(w, 404, map[string]string{"message": "Service not found"})
			return
		}
		w.WriteHeader(codes[services[index].Status])
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], versioned(mux)))
}
