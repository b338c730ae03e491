package source

import (
	"errors"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"aenv/native/internal/blobd/fault"
)

// explainRegistryError gives an error of the registry client the kind callers act on.
func explainRegistryError(err error, registry, image string) error {
	var answer *transport.Error
	var named *fault.Error
	switch {
	case errors.As(err, &named):
		return err
	case errors.As(err, &answer):
		return explainAnswer(answer, registry, image)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fault.Wrap(fault.Unavailable, err, "registry %s speaks plain HTTP; allow that for this pull (plain_http) if you trust the network", registry)
	default:
		return fault.Wrap(fault.Unavailable, err, "registry %s cannot be reached or broke off", registry)
	}
}

func explainAnswer(answer *transport.Error, registry, image string) error {
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized:
		return fault.Wrap(fault.Unauthenticated, answer,
			"registry %s wants other credentials for %s (or has no such image); pass user name and password, or log in with `docker login %s` on the node",
			registry, image, registry)
	case code == http.StatusForbidden:
		return fault.Wrap(fault.Denied, answer, "registry %s does not allow these credentials to read %s", registry, image)
	case code == http.StatusNotFound:
		return fault.Wrap(fault.NotFound, answer, "registry %s has no %s", registry, image)
	case code == http.StatusTooManyRequests:
		return fault.Wrap(fault.Unavailable, answer, "registry %s limits the rate of pulls; try later, or with credentials", registry)
	case code >= http.StatusInternalServerError || code == http.StatusRequestTimeout:
		return fault.Wrap(fault.Unavailable, answer, "registry %s has trouble", registry)
	default:
		return fault.Wrap(fault.Invalid, answer, "registry %s refuses %s", registry, image)
	}
}
