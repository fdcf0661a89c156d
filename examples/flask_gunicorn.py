# How gunicorn runs flask_app.py when each worker is to look as soon as it is there, not from its first request on.
#
#     pip install svcnode flask gunicorn
#     cd examples
#     gunicorn --config flask_gunicorn.py flask_app:app
#     curl -i localhost:8000/svc/node/health

workers = 2
preload_app = True


def post_worker_init(worker: object) -> None:
    from flask_app import node

    node.start()
