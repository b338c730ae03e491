# Settings of your interactive shells. Commands of the sandbox read this file too (it is a login shell that runs them).
case $- in
  *i*) ;;
  *) return ;;
esac
