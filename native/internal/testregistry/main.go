// Command testregistry is an image registry on loopback for the end-to-end tests, with the images they pull.
//
// It prints one line of JSON once they are there, and ends with its standard input. Called with words instead of flags it
// prints them: that is the program of the image that holds nothing else.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// listening is what the tests are told.
type listening struct {
	// Public and Private are `host:port` of the same images; Private asks for User and Password.
	Public, Private string
	User, Password  string
	// Sha256 of files as they must be in the big image, by path.
	Sha256 map[string]string
	// SizeBytes of the big image's layers.
	SizeBytes int64
}

func main() {
	blobs := flag.String("blobs", "", "folder for the layers")
	rootfs := flag.String("rootfs", "", "tar of a root file system with coreutils: the big image's first layer")
	flag.Parse()
	if *blobs == "" {
		fmt.Println(strings.Join(append([]string{"hello from"}, os.Args...), " "))
		return
	}
	if err := serve(*blobs, *rootfs); err != nil {
		log.Fatal(err)
	}
}

func serve(blobs, rootfs string) error {
	handler := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)), registry.Logger(log.New(io.Discard, "", 0)))
	said := listening{User: "puller", Password: "open sesame"}
	var err error
	if said.Public, err = listen(handler); err != nil {
		return err
	}
	if said.Private, err = listen(askPassword(handler, said.User, said.Password)); err != nil {
		return err
	}
	big, sums, err := bigImage(rootfs)
	if err != nil {
		return err
	}
	// The same layers under another digest: all of it has to be fetched anew.
	twin, err := mutate.Config(big, v1.Config{User: "user"})
	if err != nil {
		return err
	}
	program, err := programImage()
	if err != nil {
		return err
	}
	for reference, image := range map[string]v1.Image{"big:1": big, "big:2": twin, "program:1": program} {
		if err := push(said.Public+"/test/"+reference, image); err != nil {
			return err
		}
	}
	said.Sha256 = sums
	if said.SizeBytes, err = layerBytes(big); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// listen serves on a free port of loopback until the process ends.
func listen(handler http.Handler) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { log.Fatal(http.Serve(listener, handler)) }()
	return listener.Addr().String(), nil
}

func askPassword(inner http.Handler, user, password string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if givenUser, given, _ := r.BasicAuth(); givenUser != user || given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

func push(reference string, image v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	return remote.Write(ref, image)
}

func layerBytes(image v1.Image) (total int64, err error) {
	manifest, err := image.Manifest()
	if err != nil {
		return 0, err
	}
	for _, layer := range manifest.Layers {
		total += layer.Size
	}
	return total, nil
}
