package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const tokenHeader = "X-Access-Token"

var (
	errToken            = errors.New("unauthorized: the X-Access-Token header is missing or wrong")
	errSignatureMissing = errors.New("missing signature query parameter")
	errSignatureInvalid = errors.New("invalid signature")
	errSignatureExpired = errors.New("signature is already expired")
)

// requireToken lets requests pass that carry the access token, or all while none is set.
func (s *Server) requireToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := s.Identity.Current().AccessToken
		if token != "" && !equal(r.Header.Get(tokenHeader), token) {
			writeError(w, http.StatusUnauthorized, errToken.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkFileAccess lets a request for files pass that carries the token, or a signature by it for this operation ("read"
// or "write"). A wrong token is not made good by a signature.
func checkFileAccess(r *http.Request, token, operation string, now time.Time) error {
	if token == "" {
		return nil
	}
	if values := r.Header.Values(tokenHeader); len(values) > 0 {
		if !equal(values[0], token) {
			return errToken
		}
		return nil
	}
	return checkSignature(r.URL.Query(), token, operation, now)
}

func checkSignature(query url.Values, token, operation string, now time.Time) error {
	if !query.Has("signature") {
		return errSignatureMissing
	}
	// An expiration of 0 is one that has passed, not none.
	expiration, expires := query.Get("signature_expiration"), query.Has("signature_expiration")
	want := sign(query.Get("path"), operation, query.Get("username"), token, expiration, expires)
	if !equal(query.Get("signature"), want) {
		return errSignatureInvalid
	}
	if !expires {
		return nil
	}
	at, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return errSignatureInvalid
	}
	if at < now.Unix() {
		return errSignatureExpired
	}
	return nil
}

// sign makes the version 1 signature that clients make too.
func sign(path, operation, username, token, expiration string, expires bool) string {
	text := path + ":" + operation + ":" + username + ":" + token
	if expires {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func equal(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
