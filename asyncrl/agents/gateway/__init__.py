"""The gateway of the agents that play a run's episodes: OpenAI's and Anthropic's APIs, and an
episode's notes and rewards. The coordinator answers their calls, over the link of an agents actor.

    app.py             the routes, and who may use them
    call_routes.py     the model's part of them
    dialects/          a file for each API; inner_call.py is the form between them
    formats/           a file for each form of calls; model_format.py finds the model's
    gateway.py         one call, from its prompt to its end
    forwarding.py      calls to models that are not trained
    played_session.py  one attempt at an episode, and its messages to the coordinator
    known_text.py      tokens of the texts that an attempt's model has seen or sampled
"""
